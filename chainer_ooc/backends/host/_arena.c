/* Memory of NumPy's arrays from one pool of pages, as a handler of NumPy's (NEP 49); see arena.py for what it is for.

   Blocks of at least LEAST_BYTES come from here, the others from malloc. Free pages are kept as extents of addresses:

       allocate   the smallest extent that is large enough, from its start; no system call
                  else the free pages, moved side by side by mremap, and fresh ones for what they lack
       free       the extent, joined with its neighbours
       resize     the pages behind the new end are free; free pages behind the old end are taken

   So pages are asked for only when there are not enough free ones: the pool never holds more than was in use at once,
   however blocks of different sizes follow each other.

   A range that mremap moves has to be one mapping of the kernel's. Where mappings end is noted (`edges`).

   A process may have only so many mappings (vm.max_map_count), and at that limit hardly anything works. What the pool
   moves or gives back leaves a hole between blocks, which makes two mappings of one. So from MOST_AREAS on free ranges
   between blocks stay where they are, as they do where the system refuses, and fresh pages serve what they cannot. A
   block for which the system gives none comes from malloc.

   A limit of the system counts what the C library's heap holds free, such as the gradients that a model was built with.
   Where there is one, that serves arrays before fresh pages do.

   A container refuses nothing: its kernel ends the process when pages are touched. So where there is one it is asked
   whether fresh pages may be had (_contained.c), and they are touched at once: what was granted counts then.

   Between iterations a container has all that is free: it is offered to the kernel (MADV_FREE), which takes it for
   whoever lacks memory and asks nobody, such as a C library or a child process. Within one it has what was free at the
   beginning, or when forward was over, until an array is made of it (`offered`). What the kernel has taken is found by
   mincore before it is used, and is no free page any more; the rest is written to, which ends the offer.

   Where the system refuses all, training is asked to make room, as by the allocator of a GPU, and the request is tried
   again as long as it says that it has.

   Python's lock keeps the pool whole, there is no other. arena.py has it (ctypes.PyDLL), and so has NumPy, but where it
   reads text: there the handler takes it. */

#define _GNU_SOURCE
#include "_arena.h"
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __GLIBC_PREREQ
#if __GLIBC_PREREQ(2, 33)
#define HAS_MALLINFO2
#endif
#endif

#define GRAIN_BYTES ((size_t)16 << 10) /* sizes are multiples of it; every page size but ARM's 64 kB divides it */
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define LEAST_MOVED_BYTES ((size_t)128 << 10)
#define MOST_PIECES 4096 /* of all pages */
#define MOST_AREAS 32768 /* half of the mappings that Linux allows by default */
#define MOST_PAGES 4096 /* that are looked at together */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

typedef struct {
    uintptr_t start;
    size_t nbytes;
} Range;

/* Ranges in ascending order, none of which overlap. An edge is a range of no length. */
typedef struct {
    Range *items;
    size_t count, capacity;
} Ranges;

/* A limit of the system counts free memory of the C library's heap. Where there is one, arrays that find no free pages
   are made of that as far as it goes. What was too large is noted, and tried again when more is free there. */
static int is_limited;
static size_t most_from_heap, free_in_heap;

/* Arrays leave so much of a limit alone. Python's objects and buffers of libraries get it, for which nobody makes room:
   OpenBLAS ends the process. */
#define LEFT_BYTES ((size_t)4 << 20)

static Ranges used, unused, edges;
static Ranges offered; /* of `unused`, what the system may have taken */
static Ranges empty; /* starts of blocks that have no pages, or few */
static size_t unused_bytes, used_bytes, fresh_bytes;
static int keeps = 1, offers;

/* What a block has behind its last byte, at least; see layout.py. */
static size_t gap_bytes;

/* An area is blocks and free pages without a hole between them: how many there are, and may be. */
long arena_areas, arena_most_areas = MOST_AREAS;

static size_t whole_grains(size_t nbytes) { return (nbytes + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES; }

/* What a block for so many bytes takes. */
static size_t block_bytes(size_t nbytes) { return whole_grains(nbytes + gap_bytes); }

/* --- ranges ----------------------------------------------------------------------------------------------------- */

/* The index of the first range that starts at `start` or later. */
static size_t first_from(const Ranges *ranges, uintptr_t start) {
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges->items[middle].start < start)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Makes room for so many more; 0 if there is no memory. What may fail is done before anything changes. */
static int reserve(Ranges *ranges, size_t more) {
    if (ranges->count + more <= ranges->capacity)
        return 1;
    size_t capacity = 2 * (ranges->count + more) + 64;
    Range *items = realloc(ranges->items, capacity * sizeof(Range));
    if (!items)
        return 0;
    ranges->items = items, ranges->capacity = capacity;
    return 1;
}

static void insert_at(Ranges *ranges, size_t index, uintptr_t start, size_t nbytes) {
    Range *at = ranges->items + index;
    memmove(at + 1, at, (ranges->count++ - index) * sizeof(Range));
    at->start = start, at->nbytes = nbytes;
}

static void remove_at(Ranges *ranges, size_t index) {
    Range *at = ranges->items + index;
    memmove(at, at + 1, (--ranges->count - index) * sizeof(Range));
}

static void note_edge(uintptr_t start) {
    size_t index = first_from(&edges, start);
    if (index == edges.count || edges.items[index].start != start)
        insert_at(&edges, index, start, 0);
}

static void forget_edges_inside(uintptr_t start, uintptr_t end) {
    size_t first = first_from(&edges, start + 1), last = first_from(&edges, end);
    memmove(edges.items + first, edges.items + last, (edges.count - last) * sizeof(Range));
    edges.count -= last - first;
}

/* Where the mapping that has `start` ends, `end` at the latest. */
static uintptr_t mapping_end(uintptr_t start, uintptr_t end) {
    size_t index = first_from(&edges, start + 1);
    return index < edges.count && edges.items[index].start < end ? edges.items[index].start : end;
}

/* --- free pages --------------------------------------------------------------------------------------------------- */

/* Joins a range with its free neighbours; returns the index of what it is part of then. There is a place for it. */
static size_t put(uintptr_t start, size_t nbytes) {
    size_t index = first_from(&unused, start);
    unused_bytes += nbytes;
    if (index < unused.count && start + nbytes == unused.items[index].start) {
        nbytes += unused.items[index].nbytes;
        remove_at(&unused, index);
    }
    if (index && unused.items[index - 1].start + unused.items[index - 1].nbytes == start)
        unused.items[--index].nbytes += nbytes;
    else
        insert_at(&unused, index, start, nbytes);
    return index;
}

/* Free pages are offered no more: those at the start of a free range. */
static void end_offer(uintptr_t start, size_t nbytes) {
    for (size_t index = first_from(&offered, start); index < offered.count; remove_at(&offered, index)) {
        Range *range = offered.items + index;
        if (range->start >= start + nbytes)
            return;
        if (range->start + range->nbytes > start + nbytes) {
            range->nbytes -= start + nbytes - range->start, range->start = start + nbytes;
            return;
        }
    }
}

/* Takes bytes from the start of a free range; returns where it started. */
static uintptr_t take(size_t index, size_t nbytes) {
    Range *range = unused.items + index;
    uintptr_t start = range->start;
    unused_bytes -= nbytes;
    end_offer(start, nbytes);
    if (range->nbytes == nbytes)
        remove_at(&unused, index);
    else
        range->start += nbytes, range->nbytes -= nbytes;
    return start;
}

/* The smallest free range of at least so many bytes, else the largest of all; unused.count if there is none. */
static size_t best(size_t nbytes) {
    size_t found = unused.count;
    for (size_t index = 0; index < unused.count; index++) {
        size_t here = unused.items[index].nbytes, there = found < unused.count ? unused.items[found].nbytes : 0;
        int fits = here >= nbytes, found_fits = there >= nbytes;
        if (fits ? !found_fits || here < there : !found_fits && here > there)
            found = index;
    }
    return found;
}

/* Whether an address belongs to one of the ranges. */
static int is_in(const Ranges *ranges, uintptr_t address) {
    size_t index = first_from(ranges, address + 1);
    return index && address - ranges->items[index - 1].start < ranges->items[index - 1].nbytes;
}

/* See _arena.h. */
int arena_note_edges(uintptr_t one, uintptr_t other) {
    if (!is_in(&used, one))
        return 1; /* it is nobody's who moves it */
    if (!reserve(&edges, 2))
        return 0;
    note_edge(one), note_edge(other);
    return 1;
}

/* How many areas a range of the pool adds if it leaves: 1 if there are two of one then, 0, or -1. It may have left. */
static int areas_without(uintptr_t start, size_t nbytes) {
    uintptr_t before = start - 1, behind = start + nbytes;
    return is_in(&used, before) + is_in(&unused, before) + is_in(&used, behind) + is_in(&unused, behind) - 1;
}

static int may_leave(uintptr_t start, size_t nbytes) {
    return arena_areas < arena_most_areas || areas_without(start, nbytes) <= 0;
}

/* Gives a range of the pool back to the system; 0 if that would be one mapping too many. */
static int unmap(uintptr_t start, size_t nbytes) {
    if (!reserve(&edges, 2) || !may_leave(start, nbytes) || munmap((void *)start, nbytes))
        return 0;
    arena_areas += areas_without(start, nbytes);
    forget_edges_inside(start, start + nbytes);
    note_edge(start), note_edge(start + nbytes);
    return 1;
}

/* Gives bytes from the start of a free range back to the system. Returns 0 if it refuses: then their pages go back, and
   the addresses stay free. */
static int give_back(size_t index, size_t nbytes) {
    uintptr_t start = unused.items[index].start;
    if (!unmap(start, nbytes)) {
        madvise((void *)start, nbytes, MADV_DONTNEED);
        return 0;
    }
    take(index, nbytes);
    return 1;
}

/* Gives bytes of a free range back, as many as there are beyond those to keep. */
static int give_excess(size_t index, size_t kept_bytes) {
    size_t excess = whole_grains(unused_bytes - kept_bytes), here = unused.items[index].nbytes;
    return give_back(index, here < excess ? here : excess);
}

/* Gives free pages back to the system until so many bytes are left: small ranges first, which are of least use. Once one
   is refused, all that are not. */
static void keep_at_most(size_t nbytes) {
    while (unused_bytes > nbytes && give_excess(best(1), nbytes))
        ;
    for (size_t index = unused.count; unused_bytes > nbytes && index--;)
        give_excess(index, nbytes);
}

/* --- free pages that are offered ---------------------------------------------------------------------------------- */

/* Offers all of a free range, or of what gets one; 0 if the system does not know of that. */
static int offer(uintptr_t start, size_t nbytes) {
    end_offer(start, nbytes);
    if (!reserve(&offered, 1) || madvise((void *)start, nbytes, MADV_FREE))
        return 0;
    insert_at(&offered, first_from(&offered, start), start, nbytes);
    return 1;
}

/* Whether the system has taken none of these pages. */
static int is_resident(uintptr_t start, size_t nbytes) {
    static unsigned char pages[MOST_PAGES];
    size_t page = (size_t)sysconf(_SC_PAGESIZE), most = MOST_PAGES * page;
    for (size_t done = 0; done < nbytes; done += most) {
        size_t part = nbytes - done < most ? nbytes - done : most, count = (part + page - 1) / page;
        if (mincore((void *)(start + done), part, pages))
            return 0;
        for (size_t each = 0; each < count; each++)
            if (!(pages[each] & 1))
                return 0;
    }
    return 1;
}

/* Whether the offered range of this index has some of the bytes at the start of a free range, which are `part` then. */
static int has_some(size_t index, uintptr_t start, size_t nbytes, Range *part) {
    if (index == offered.count || offered.items[index].start >= start + nbytes)
        return 0;
    *part = offered.items[index];
    if (part->start + part->nbytes > start + nbytes)
        part->nbytes = start + nbytes - part->start;
    return 1;
}

/* Whether the system has taken none of the bytes at the start of a free range; no Python runs between this and their
   use. */
static int is_there(uintptr_t start, size_t nbytes) {
    Range part;
    for (size_t index = first_from(&offered, start); has_some(index, start, nbytes, &part); index++)
        if (!is_resident(part.start, part.nbytes))
            return 0;
    return 1;
}

/* Ends the offer of the bytes at the start of a free range by writing to each page, as none holds anything. */
static void take_back(uintptr_t start, size_t nbytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    Range part;
    for (size_t index = first_from(&offered, start); has_some(index, start, nbytes, &part); index++)
        for (size_t done = 0; done < part.nbytes; done += page)
            *(volatile unsigned char *)(part.start + done) = 0;
}

/* Whether all of a free range is offered. */
static int is_offered(Range range) {
    Range part;
    size_t found = 0;
    for (size_t index = first_from(&offered, range.start); has_some(index, range.start, range.nbytes, &part); index++)
        found += part.nbytes;
    return found == range.nbytes;
}

/* Gives back each free range of which the system has taken pages. */
void arena_drop_taken(void) {
    for (size_t index = unused.count; offered.count && index--;)
        if (!is_there(unused.items[index].start, unused.items[index].nbytes))
            give_back(index, unused.items[index].nbytes);
}

/* The same for what a block of so many bytes would be made of. */
static void drop_taken_for(size_t nbytes) {
    for (size_t index; offered.count && (index = best(nbytes)) < unused.count;) {
        if (unused.items[index].nbytes < nbytes) {
            arena_drop_taken();
            return;
        }
        if (is_there(unused.items[index].start, nbytes) || !give_back(index, unused.items[index].nbytes))
            return;
    }
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

/* Addresses without pages, at a huge page's start if there are whole ones. */
static uintptr_t find_addresses(size_t nbytes) {
    size_t beside = nbytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
    void *found = mmap(NULL, nbytes + beside, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED)
        return 0;
    uintptr_t start = (uintptr_t)found;
    if (beside) {
        size_t before = -start & (HUGE_PAGE_BYTES - 1);
        if (before)
            munmap(found, before);
        if (before < beside)
            munmap((void *)(start + before + nbytes), beside - before);
        start += before;
    }
    return start;
}

/* What is not worth a move: clearing it costs little, while mappings would get smaller and smaller. */
static size_t least_moved(void) {
    size_t share = (used_bytes + unused_bytes) / MOST_PIECES;
    return share > LEAST_MOVED_BYTES ? share : LEAST_MOVED_BYTES;
}

/* Moves free pages to `start`. So many are used up, as far as they may leave; scraps of them go back to the system, to be
   had as fresh ones in one piece. Returns the bytes that were moved. `lost` is set to the bytes behind them where a move
   failed half-way: there may be a hole, which is another's by now. */
static size_t gather(uintptr_t start, size_t wanted, size_t *lost) {
    size_t moved = 0, least = least_moved();
    *lost = 0;
    while (wanted) {
        size_t index = best(wanted), nbytes = unused.items[index].nbytes;
        uintptr_t from = unused.items[index].start;
        nbytes = mapping_end(from, from + (nbytes < wanted ? nbytes : wanted)) - from;
        if (!may_leave(from, nbytes))
            break;
        if (nbytes >= least) {
            take_back(from, nbytes);
            void *to = (void *)(start + moved);
            if (mremap((void *)from, nbytes, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) {
                *lost = errno == ENOMEM ? 0 : nbytes; /* too many mappings: nothing was done */
                break;
            }
            take(index, nbytes);
            arena_areas += areas_without(from, nbytes);
            moved += nbytes;
            note_edge(start + moved);
        } else if (!give_back(index, nbytes))
            break;
        wanted -= nbytes;
    }
    return moved;
}

/* Whether a limit of the system leaves what is not for arrays. */
static int leaves_enough(void) {
    if (!is_limited)
        return 1;
    void *found = mmap(NULL, LEFT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found != MAP_FAILED && !munmap(found, LEFT_BYTES);
}

/* Fresh pages; 0 if the system refuses. */
static int make_fresh(uintptr_t start, size_t nbytes) {
    if (mprotect((void *)start, nbytes, PROT_READ | PROT_WRITE) || !leaves_enough())
        return 0;
    fresh_bytes += nbytes;
    if (nbytes >= HUGE_PAGE_BYTES) /* of all, or there would be edges where huge pages begin and end */
        madvise((void *)start, nbytes, MADV_HUGEPAGE);
    if (in_container())
        madvise((void *)start, nbytes, MADV_POPULATE_WRITE); /* an older kernel waits for the first write */
    return 1;
}

/* A block of pages from several places; 0 if the system refuses. `dirty` is set to the bytes that were used before. */
static uintptr_t assemble(size_t nbytes, size_t *dirty) {
    uintptr_t start = find_addresses(nbytes);
    if (!start)
        return 0;
    size_t wanted = unused_bytes < nbytes ? unused_bytes : nbytes;
    if (!reserve(&edges, 2 * (unused.count + edges.count) + 4)) {
        munmap((void *)start, nbytes);
        return 0;
    }
    forget_edges_inside(start, start + nbytes); /* of what was there before */
    note_edge(start), note_edge(start + nbytes);
    size_t lost, moved = gather(start, wanted, &lost), lacking = nbytes - moved;
    if (lost || (lacking && !make_fresh(start + moved, lacking))) {
        if (lacking > lost)
            munmap((void *)(start + moved + lost), lacking - lost);
        if (moved) { /* it stays as it is */
            arena_areas -= areas_without(start, moved);
            put(start, moved);
        }
        return 0;
    }
    arena_areas -= areas_without(start, nbytes);
    *dirty = moved;
    return start;
}

static void *allocate(size_t nbytes, size_t *dirty) {
    size_t whole = block_bytes(nbytes);
    if (whole < nbytes || !reserve(&used, 1) || !reserve(&unused, used.count + 2)) /* a place for each that is freed */
        return NULL;
    size_t index = best(whole);
    uintptr_t start;
    *dirty = nbytes;
    if (index < unused.count && unused.items[index].nbytes >= whole) {
        take_back(unused.items[index].start, whole);
        start = take(index, whole);
    } else {
        start = assemble(whole, dirty);
        if (!start) { /* once more, with fresh pages */
            keep_at_most(0);
            start = assemble(whole, dirty);
        }
    }
    if (!start)
        return NULL;
    insert_at(&used, first_from(&used, start), start, whole);
    used_bytes += whole;
    return (void *)start;
}

/* The index of a block in `used`, or used.count if it is none of ours. */
static size_t index_of(const void *block) {
    size_t index = first_from(&used, (uintptr_t)block);
    return index < used.count && used.items[index].start == (uintptr_t)block ? index : used.count;
}

/* Gives pages of a block back to the system; 0 if it refuses. */
static int leave(uintptr_t start, size_t nbytes) {
    int has_left = unmap(start, nbytes);
    if (has_left)
        used_bytes -= nbytes;
    return has_left;
}

/* Has pages of a block be free. */
static void discard(uintptr_t start, size_t nbytes) {
    if (offers && !offer(start, nbytes) && leave(start, nbytes))
        return;
    used_bytes -= nbytes;
    size_t index = put(start, nbytes);
    if (!keeps)
        give_back(index, unused.items[index].nbytes);
}

/* See _arena.h. Without memory for the note it is kept as others are. */
void arena_is_empty(uintptr_t address) {
    size_t index = first_from(&used, address + 1);
    if (!is_in(&used, address) || !reserve(&empty, 1))
        return;
    uintptr_t start = used.items[index - 1].start;
    insert_at(&empty, first_from(&empty, start), start, 0);
}

/* Whether a block was said to be empty, which is not noted any more. */
static int was_empty(uintptr_t start) {
    size_t index = first_from(&empty, start);
    if (index == empty.count || empty.items[index].start != start)
        return 0;
    remove_at(&empty, index);
    return 1;
}

/* One that has no pages leaves: they would count as kept, and have to be asked for all the same. */
static void release(size_t index) {
    Range block = used.items[index];
    remove_at(&used, index);
    if (!was_empty(block.start) || !leave(block.start, block.nbytes))
        discard(block.start, block.nbytes);
}

/* Has the pages of a block be free that lie behind its first `whole` bytes; they stay in it if there is no memory. */
static void cut(size_t index, size_t whole) {
    Range *block = used.items + index;
    size_t rest = block->nbytes - whole;
    if (!rest || !reserve(&unused, used.count + 1))
        return;
    block->nbytes = whole;
    discard(block->start + whole, rest);
}

/* Adds to a block the free pages behind it, which NumPy writes to at once; 0 if they are not enough. */
static int extend(size_t index, size_t whole) {
    Range *block = used.items + index;
    uintptr_t end = block->start + block->nbytes;
    size_t more = whole - block->nbytes, behind = first_from(&unused, end);
    if (behind == unused.count || unused.items[behind].start != end || unused.items[behind].nbytes < more
        || !is_there(end, more))
        return 0;
    take(behind, more);
    block->nbytes = whole;
    used_bytes += more;
    return 1;
}

/* --- NumPy's handler ---------------------------------------------------------------------------------------------- */

static uintptr_t heap_end(void) { return (uintptr_t)sbrk(0); }

/* Whether a block is of the heap, which has not grown since it ended there. */
static int is_within(const void *block, uintptr_t end) { return (uintptr_t)block < end && heap_end() == end; }

/* Gives back what the heap holds free. */
static void trim_heap(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

/* Frees a block for which the heap has grown, and has it shrink again. */
static void give_back_grown(void *block) {
    free(block);
    trim_heap();
}

/* Memory of the C library's heap that is free; NULL if it has none for this. */
#ifdef HAS_MALLINFO2
static void *from_heap(size_t nbytes) {
    size_t here = mallinfo2().fordblks;
    if (here > free_in_heap + LEAST_BYTES)
        most_from_heap = here, free_in_heap = here;
    if (nbytes > most_from_heap || nbytes > here)
        return NULL;
    uintptr_t end = heap_end();
    void *block = malloc(nbytes);
    if (block && is_within(block, end))
        return block;
    most_from_heap = nbytes - 1;
    give_back_grown(block);
    return NULL;
}
#else
static void *from_heap(size_t nbytes) { return NULL; }
#endif

static int has_unused(size_t nbytes) {
    size_t whole = block_bytes(nbytes), index = best(whole);
    return index < unused.count && unused.items[index].nbytes >= whole;
}

static void *obtain(size_t nbytes, size_t *dirty) {
    if (nbytes < LEAST_BYTES)
        return NULL;
    if (is_limited && !has_unused(nbytes)) {
        void *block = from_heap(nbytes);
        if (block) {
            *dirty = nbytes;
            return block;
        }
    }
    return allocate(nbytes, dirty);
}

/* Of Python's C API. */
typedef struct _object PyObject;
extern PyObject *PyErr_Occurred(void), *PyLong_FromUnsignedLong(unsigned long number);
extern PyObject *PyObject_CallFunction(PyObject *function, const char *format, ...);
extern void Py_IncRef(PyObject *object), Py_DecRef(PyObject *object);
extern void PyErr_Fetch(PyObject **kind, PyObject **error, PyObject **trace), PyErr_Clear(void);
extern void PyErr_NormalizeException(PyObject **kind, PyObject **error, PyObject **trace);
extern int PyException_SetTraceback(PyObject *error, PyObject *trace), PyObject_IsTrue(PyObject *object);
extern int PyDict_SetItem(PyObject *dict, PyObject *key, PyObject *item);
extern int Py_AddPendingCall(int (*function)(void *), void *argument);
extern unsigned long PyThread_get_thread_native_id(void);

/* Called with so many bytes, makes room and returns whether it has; what it has raised, by thread; raises it. */
static PyObject *makes_room, *raised, *raises;

static int raise_soon(void *unused) {
    (void)unused;
    PyObject *none = PyObject_CallFunction(raises, NULL);
    Py_DecRef(none);
    return none ? 0 : -1;
}

/* Notes what is being raised. Python raises it in its main thread as soon as it runs code there: as signals are handled
   in that one alone, none is lost or waits. */
static void note_raised(void) {
    PyObject *kind, *error, *trace, *thread = NULL;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (error && trace)
        PyException_SetTraceback(error, trace);
    if (error && (thread = PyLong_FromUnsignedLong(PyThread_get_thread_native_id())))
        PyDict_SetItem(raised, thread, error);
    Py_DecRef(thread), Py_DecRef(kind), Py_DecRef(error), Py_DecRef(trace);
    PyErr_Clear();
    Py_AddPendingCall(raise_soon, NULL);
}

static int make_room(size_t nbytes) {
    PyObject *has_made = PyObject_CallFunction(makes_room, "n", nbytes);
    int yes = has_made && PyObject_IsTrue(has_made); /* a bool, see arena.py */
    if (!has_made)
        note_raised();
    Py_DecRef(has_made);
    return yes;
}

/* Whether a container leaves what an array takes beyond free pages. */
static int is_left(size_t nbytes) {
    size_t whole = block_bytes(nbytes);
    if (nbytes >= LEAST_BYTES)
        drop_taken_for(whole);
    return nbytes < LEAST_BYTES || whole <= unused_bytes || container_leaves(whole - unused_bytes);
}

/* What is done once for an array, and then only where it has helped. */
typedef struct {
    int has_trimmed, has_waited;
} Tried;

/* Whether there is a bit more room than when malloc failed, or than a container left. */
static int has_made_room(size_t nbytes, Tried *tried) {
    if (unused_bytes) {
        keep_at_most(0); /* malloc cannot use free pages of the pool */
        if (!unused_bytes)
            return 1;
    }
    if (in_container() && !tried->has_trimmed) {
        tried->has_trimmed = 1;
        trim_heap();
        return 1;
    }
    if (!PyErr_Occurred() && make_room(nbytes))
        return 1;
    return !tried->has_waited && (tried->has_waited = container_waits(nbytes));
}

/* What malloc or calloc gave for so many bytes, the heap's end having been there before. Where the heap has grown for an
   array, it is given back if that leaves too little. */
static void *accept(void *block, size_t nbytes, uintptr_t end) {
    if (!block || nbytes < LEAST_BYTES)
        return block;
    if (is_within(block, end)) {
        if (nbytes > most_from_heap)
            most_from_heap = nbytes;
        return block;
    }
    if (leaves_enough())
        return block;
    give_back_grown(block);
    return NULL;
}

/* A block for an array, of zeros if told. */
static void *make(size_t nbytes, int zeros) {
    size_t dirty;
    for (Tried tried = {0};;) {
        if (is_left(nbytes)) {
            void *block = obtain(nbytes, &dirty);
            uintptr_t end = heap_end();
            if (block)
                return zeros ? memset(block, 0, dirty < nbytes ? dirty : nbytes) : block;
            if ((block = accept(zeros ? calloc(nbytes, 1) : malloc(nbytes), nbytes, end)))
                return block;
        }
        if (!has_made_room(nbytes, &tried))
            return NULL;
    }
}

static void destroy(void *block, size_t nbytes) {
    file_backed_freed((uintptr_t)block, nbytes);
    size_t index = index_of(block);
    if (index == used.count)
        free(block);
    else
        release(index);
}

static void *resize(void *block, size_t nbytes) {
    size_t index = index_of(block), before = index < used.count ? used.items[index].nbytes : 0;
    if (!before) { /* it stays where it is from */
        size_t here = malloc_usable_size(block), more = nbytes > here ? nbytes - here : 0;
        void *grown = NULL;
        for (Tried tried = {0}; !grown;) {
            if (more < LEAST_BYTES || container_leaves(more))
                grown = realloc(block, nbytes);
            if (!grown && !has_made_room(nbytes, &tried))
                return NULL;
        }
        return grown;
    }
    size_t whole = block_bytes(nbytes);
    if (nbytes >= LEAST_BYTES && whole >= nbytes) {
        if (whole <= before) {
            cut(index, whole);
            return block;
        }
        if (extend(index, whole))
            return block;
    }
    void *moved = make(nbytes, 0);
    if (!moved)
        return NULL;
    memcpy(moved, block, before < nbytes ? before : nbytes);
    destroy(block, before);
    return moved;
}

extern int PyGILState_Check(void), PyGILState_Ensure(void);
extern void PyGILState_Release(int state);

#define HAS_IT -1

/* Takes Python's lock, if the caller does not have it. */
static int take_lock(void) { return PyGILState_Check() ? HAS_IT : PyGILState_Ensure(); }

static void give_lock(int state) {
    if (state != HAS_IT)
        PyGILState_Release(state);
}

static void *handle_malloc(void *context, size_t nbytes) {
    int state = take_lock();
    void *block = make(nbytes, 0);
    give_lock(state);
    return block;
}

static void *handle_calloc(void *context, size_t count, size_t size) {
    size_t nbytes;
    if (__builtin_mul_overflow(count, size, &nbytes))
        return NULL;
    int state = take_lock();
    void *block = make(nbytes, 1);
    give_lock(state);
    return block;
}

static void *handle_realloc(void *context, void *block, size_t nbytes) {
    int state = take_lock();
    void *resized = resize(block, nbytes);
    give_lock(state);
    return resized;
}

static void handle_free(void *context, void *block, size_t nbytes) {
    int state = take_lock();
    destroy(block, nbytes);
    give_lock(state);
}

/* PyDataMem_Handler of NumPy's C API, version 1. */
typedef struct {
    char name[127];
    uint8_t version;
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *, size_t);
} Handler;

const char arena_capsule_name[] = "mem_handler"; /* as NumPy wants it; its arrays may outlive Python's modules */

Handler arena_handler = {"chainer_ooc", 1, NULL, handle_malloc, handle_calloc, handle_realloc, handle_free};

static void (*free_by_numpy)(void *, void *, size_t);

static void tell_and_free(void *context, void *block, size_t nbytes) {
    file_backed_freed((uintptr_t)block, nbytes);
    free_by_numpy(context, block, nbytes);
}

/* Has NumPy's own handler tell of what it frees, as ours does, if it is of the same version. */
void arena_watch(Handler *numpys) {
    if (numpys->version == arena_handler.version && numpys->free != tell_and_free)
        free_by_numpy = numpys->free, numpys->free = tell_and_free;
}

/* --- what arena.py calls ------------------------------------------------------------------------------------------- */

/* Within an iteration what was taken is found as arrays are made: this is asked several times a computation. */
size_t arena_unused_bytes(void) {
    if (offers)
        arena_drop_taken();
    return unused_bytes;
}

size_t arena_used_bytes(void) { return used_bytes; }

size_t arena_fresh_bytes(void) { return fresh_bytes; }

void arena_keep_at_most(size_t nbytes) { keep_at_most(nbytes); }

void arena_set_limited(int yes) { is_limited = yes, free_in_heap = 0; }

void arena_set_gap(size_t nbytes) { gap_bytes = nbytes; }

/* Sets for good who is asked for room, what it has raised, by thread, and who raises that. */
void arena_ask(PyObject *function, PyObject *dict, PyObject *then) {
    makes_room = function, raised = dict, raises = then;
    Py_IncRef(function), Py_IncRef(dict), Py_IncRef(then);
}

/* Offers what is free now; what cannot be goes back. */
void arena_offer(void) {
    for (size_t index = unused.count; index--;) {
        Range range = unused.items[index];
        if (!is_offered(range) && !offer(range.start, range.nbytes))
            give_back(index, range.nbytes);
    }
}

/* Whether freed pages are offered at once. */
void arena_set_offering(int yes) { offers = yes; }

/* Whether freed pages are kept. */
void arena_keep(int yes) {
    keeps = yes;
    if (!keeps)
        keep_at_most(0);
}
