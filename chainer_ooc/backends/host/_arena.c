/* Memory of NumPy's arrays from one pool of pages, as a handler of NumPy's (NEP 49); see arena.py for what it is for.

   Blocks of at least LEAST_BYTES come from here, the others from malloc. Free pages are kept as extents of addresses:

       allocate   the smallest extent that is large enough, from its start; no system call
                  else the free pages, moved side by side by mremap, and fresh ones for what they lack
       free       the extent, joined with its neighbours

   So pages are asked for only when there are not enough free ones: the pool never holds more than was in use at once,
   however blocks of different sizes follow each other.

   A range that mremap moves has to be one mapping of the kernel's. Where mappings end is noted (`edges`).

   Callers hold Python's lock: NumPy, and arena.py by ctypes.PyDLL. So there is no other. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LEAST_BYTES ((size_t)256 << 10)
#define GRAIN_BYTES ((size_t)16 << 10) /* sizes are multiples of it; every page size but ARM's 64 kB divides it */
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define LEAST_MOVED_BYTES ((size_t)128 << 10)
#define MOST_PIECES 4096 /* of all pages; Linux allows 65530 mappings by default (vm.max_map_count) */

typedef struct {
    uintptr_t start;
    size_t nbytes;
} Range;

/* Ranges in ascending order, none of which overlap. An edge is a range of no length. */
typedef struct {
    Range *items;
    size_t count, capacity;
} Ranges;

static Ranges used, unused, edges;
static size_t unused_bytes, used_bytes, fresh_bytes;
static int keeps = 1;

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

/* Joins a range with its free neighbours. The caller has reserved a place for it. */
static void put(uintptr_t start, size_t nbytes) {
    size_t index = first_from(&unused, start);
    unused_bytes += nbytes;
    if (index < unused.count && start + nbytes == unused.items[index].start) {
        nbytes += unused.items[index].nbytes;
        remove_at(&unused, index);
    }
    if (index && unused.items[index - 1].start + unused.items[index - 1].nbytes == start)
        unused.items[index - 1].nbytes += nbytes;
    else
        insert_at(&unused, index, start, nbytes);
}

/* Takes bytes from the start of a free range; returns where it started. */
static uintptr_t take(size_t index, size_t nbytes) {
    Range *range = unused.items + index;
    uintptr_t start = range->start;
    unused_bytes -= nbytes;
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

static void give_back(uintptr_t start, size_t nbytes) {
    munmap((void *)start, nbytes);
    forget_edges_inside(start, start + nbytes);
    note_edge(start), note_edge(start + nbytes);
}

/* Gives free pages back to the system until so many bytes are left: small ranges first, which are of least use. */
static void keep_at_most(size_t nbytes) {
    while (unused_bytes > nbytes) {
        size_t excess = (unused_bytes - nbytes + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES, index = best(1);
        size_t here = unused.items[index].nbytes < excess ? unused.items[index].nbytes : excess;
        if (!reserve(&edges, 2))
            return;
        give_back(take(index, here), here);
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

/* Moves free pages to `start`. So many are used up; scraps of them go back to the system, to be had as fresh ones in one
   piece. Returns the bytes that were moved; `refused` is set if a move was. */
static size_t gather(uintptr_t start, size_t wanted, int *refused) {
    size_t moved = 0, least = least_moved();
    *refused = 0;
    while (wanted) {
        size_t index = best(wanted), nbytes = unused.items[index].nbytes;
        uintptr_t from = unused.items[index].start;
        nbytes = mapping_end(from, from + (nbytes < wanted ? nbytes : wanted)) - from;
        if (nbytes < least)
            give_back(from, nbytes);
        else {
            void *to = (void *)(start + moved);
            if (mremap((void *)from, nbytes, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) {
                *refused = 1;
                break;
            }
            moved += nbytes;
            note_edge(start + moved);
        }
        take(index, nbytes);
        wanted -= nbytes;
    }
    return moved;
}

/* Fresh pages; 0 if the system refuses. */
static int make_fresh(uintptr_t start, size_t nbytes) {
    if (mprotect((void *)start, nbytes, PROT_READ | PROT_WRITE))
        return 0;
    fresh_bytes += nbytes;
    if (nbytes >= HUGE_PAGE_BYTES) /* of all, or there would be edges where huge pages begin and end */
        madvise((void *)start, nbytes, MADV_HUGEPAGE);
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
    int refused;
    size_t moved = gather(start, wanted, &refused);
    if (refused || (moved < nbytes && !make_fresh(start + moved, nbytes - moved))) {
        /* What was moved stays as it is. Where a move failed there may be a hole that is another's by now. */
        if (!refused)
            munmap((void *)(start + moved), nbytes - moved);
        if (moved)
            put(start, moved);
        return 0;
    }
    *dirty = moved;
    return start;
}

static void *allocate(size_t nbytes, size_t *dirty) {
    size_t whole = (nbytes + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES;
    if (whole < nbytes || !reserve(&used, 1) || !reserve(&unused, 2))
        return NULL;
    size_t index = best(whole);
    uintptr_t start;
    *dirty = nbytes;
    if (index < unused.count && unused.items[index].nbytes >= whole)
        start = take(index, whole);
    else {
        start = assemble(whole, dirty);
        if (!start) { /* once more, with fresh pages alone */
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

static void release(size_t index) {
    Range range = used.items[index];
    remove_at(&used, index);
    used_bytes -= range.nbytes;
    if (keeps && reserve(&unused, 1))
        put(range.start, range.nbytes);
    else if (reserve(&edges, 2))
        give_back(range.start, range.nbytes);
    else
        munmap((void *)range.start, range.nbytes);
}

/* --- NumPy's handler ---------------------------------------------------------------------------------------------- */

static void *handle_malloc(void *context, size_t nbytes) {
    size_t dirty;
    return nbytes < LEAST_BYTES ? malloc(nbytes) : allocate(nbytes, &dirty);
}

static void *handle_calloc(void *context, size_t count, size_t size) {
    size_t nbytes, dirty;
    if (__builtin_mul_overflow(count, size, &nbytes))
        return NULL;
    if (nbytes < LEAST_BYTES)
        return calloc(count, size);
    void *block = allocate(nbytes, &dirty);
    if (block)
        memset(block, 0, dirty < nbytes ? dirty : nbytes);
    return block;
}

static void handle_free(void *context, void *block, size_t nbytes) {
    size_t index = index_of(block);
    if (index == used.count)
        free(block);
    else
        release(index);
}

static void *handle_realloc(void *context, void *block, size_t nbytes) {
    size_t index = index_of(block), before = index < used.count ? used.items[index].nbytes : 0;
    if (!before)
        return realloc(block, nbytes); /* it stays where it is from */
    if (before >= nbytes && nbytes >= LEAST_BYTES)
        return block;
    void *moved = handle_malloc(context, nbytes);
    if (!moved)
        return NULL;
    memcpy(moved, block, before < nbytes ? before : nbytes);
    handle_free(context, block, before);
    return moved;
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

Handler arena_handler = {"chainer_ooc", 1, NULL, handle_malloc, handle_calloc, handle_realloc, handle_free};

/* --- what arena.py calls ------------------------------------------------------------------------------------------- */

size_t arena_unused_bytes(void) { return unused_bytes; }

size_t arena_used_bytes(void) { return used_bytes; }

size_t arena_fresh_bytes(void) { return fresh_bytes; }

void arena_keep_at_most(size_t nbytes) { keep_at_most(nbytes); }

/* Whether freed pages are kept. */
void arena_keep(int yes) {
    keeps = yes;
    if (!keeps)
        keep_at_most(0);
}
