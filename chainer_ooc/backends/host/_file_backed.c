/* Blocks that lie on a file: whole pages of live arrays, whoever made them, at the addresses that they had. So nobody who
   refers to a block notices. What is written there is written to the file, and to take the pages from the process copies
   nothing; see file_backed.py for what it is for.

       back      the pages of a block are those of the file, which has the same bytes
       drop      pages leave the process, and stay in the file
       copy      bytes go between such a block and a buffer by the file: a page that is written for the first time costs
                 the kernel 11 microseconds in a mapping, and 1 here (ext4)
       unback    private memory again, with the same bytes: before a fork, and when the file is to be closed
       died      private memory again, with any bytes

   A block dies without a step of Python in between: `file_backed_died` is what its weak reference calls.

   Callers hold Python's lock, by ctypes.PyDLL. So each of these is one step for all threads, and for interrupts. */

#define _GNU_SOURCE
#include "_arena.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

typedef struct {
    const void *owner; /* the weak reference to the block, which lives as long as this is known */
    int is_dead;
    uintptr_t start;
    size_t nbytes;
    int descriptor;
    off_t offset;
} Block;

static Block *blocks;
static size_t count, capacity;

static Block *find(const void *owner) {
    for (size_t index = 0; index < count; index++)
        if (blocks[index].owner == owner)
            return blocks + index;
    return NULL;
}

static void forget(Block *block) { *block = blocks[--count]; }

/* Puts a new mapping in the place of another, in one step of the kernel's. An errno, and nothing has changed, if that
   fails; mmap with MAP_FIXED would leave a hole then. */
static int replace(uintptr_t start, size_t nbytes, int flags, int descriptor, off_t offset, int copies) {
    void *fresh = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, flags, descriptor, offset);
    if (fresh == MAP_FAILED)
        return errno;
    if (copies)
        memcpy(fresh, (void *)start, nbytes);
    if (mremap(fresh, nbytes, nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)start) == MAP_FAILED) {
        int error = errno;
        munmap(fresh, nbytes);
        return error;
    }
    return 0;
}

/* Lays whole pages of a block over those of a file, which has the same bytes from `offset` on. An errno, and nothing has
   changed, if the system refuses. */
int file_backed_back(const void *owner, uintptr_t start, size_t nbytes, int descriptor, off_t offset) {
    if (count == capacity) {
        size_t more = 2 * capacity + 64;
        Block *grown = realloc(blocks, more * sizeof(Block));
        if (!grown)
            return ENOMEM;
        blocks = grown, capacity = more;
    }
    if (!arena_note_edges(start, start + nbytes))
        return ENOMEM;
    int error = replace(start, nbytes, MAP_SHARED, descriptor, offset, 0);
    if (!error)
        blocks[count++] = (Block){owner, 0, start, nbytes, descriptor, offset};
    return error;
}

int file_backed_is(const void *owner) { return find(owner) != NULL; }

void file_backed_drop(const void *owner) {
    Block *block = find(owner);
    if (block)
        madvise((void *)block->start, block->nbytes, MADV_DONTNEED);
}

/* Reads from the file, or writes to it; an errno, which is EIO where it ends early. */
static int move(const Block *block, uintptr_t address, char *buffer, size_t nbytes, int writes) {
    off_t at = block->offset + (off_t)(address - block->start);
    while (nbytes) {
        ssize_t moved = writes ? pwrite(block->descriptor, buffer, nbytes, at)
                               : pread(block->descriptor, buffer, nbytes, at);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return moved ? errno : EIO;
        buffer += moved, at += moved, nbytes -= (size_t)moved;
    }
    return 0;
}

static void copy_in_memory(uintptr_t address, char *buffer, size_t nbytes, int writes) {
    if (writes)
        memcpy((void *)address, buffer, nbytes);
    else
        memcpy(buffer, (void *)address, nbytes);
}

/* Copies bytes from `address` on to a buffer, or from there; an errno. A block that is private by now is copied too, and
   so is what lies before its first whole page or behind its last. */
int file_backed_copy(const void *owner, uintptr_t address, char *buffer, size_t nbytes, int writes) {
    const Block *block = find(owner);
    uintptr_t end = address + nbytes;
    uintptr_t from = block && block->start > address ? block->start : address;
    uintptr_t to = block && block->start + block->nbytes < end ? block->start + block->nbytes : end;
    if (!block || from >= to) {
        copy_in_memory(address, buffer, nbytes, writes);
        return 0;
    }
    copy_in_memory(address, buffer, from - address, writes);
    copy_in_memory(to, buffer + (to - address), end - to, writes);
    return move(block, from, buffer + (from - address), to - from, writes);
}

static int make_private(Block *block) {
    int error = replace(block->start, block->nbytes, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 1);
    if (!error)
        forget(block);
    return error;
}

/* Makes a block private memory again; an errno, and it is as it was, if the system refuses. */
int file_backed_unback(const void *owner) {
    Block *block = find(owner);
    return block && !block->is_dead ? make_private(block) : 0;
}

/* Before a fork: what the parent writes later would be seen by the child. What the system refuses stays. */
void file_backed_unback_all(void) {
    for (size_t index = count; index--;)
        if (!blocks[index].is_dead)
            make_private(blocks + index);
}

/* In a forked child, where the file is the parent's: what the child writes stays its own. */
void file_backed_part(void) {
    for (; count; forget(blocks))
        mmap((void *)blocks->start, blocks->nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, blocks->descriptor,
             blocks->offset);
}

/* What a weak reference calls as its block dies. Where the system refuses private memory, its addresses stay on the file,
   which whoever has them next can use as well; its place in the file is never given to another then. */
void file_backed_died(const void *owner) {
    Block *block = find(owner);
    if (!block)
        return;
    block->is_dead = 1;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED; /* a limit has no say where as many pages leave */
    if (mmap((void *)block->start, block->nbytes, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
        return;
    if (block->nbytes >= HUGE_PAGE_BYTES)
        madvise((void *)block->start, block->nbytes, MADV_HUGEPAGE);
    forget(block);
}
