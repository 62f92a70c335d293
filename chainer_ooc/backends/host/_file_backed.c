/* Blocks that lie on a file: whole pages of live arrays, whoever made them, at the addresses that they had. So nobody who
   refers to a block notices. What is written there is written to the file, and to take the pages from the process copies
   nothing; see file_backed.py for what it is for.

       back      the pages of a block are those of the file, which has the same bytes
       drop      pages leave the process, and stay in the file
       copy      bytes go between such a block and a buffer by the file: a page that is written for the first time costs
                 the kernel 11 microseconds in a mapping, and 1 here (ext4)
       unback    private memory again, with the same bytes: before a fork, and when the file is to be closed
       died      private memory again, with any bytes

   A block dies without a step of Python in between: `file_backed_freed` is called before its memory is freed, by our
   handler, and from NumPy 2.5 on by NumPy's. `file_backed_died` is what its weak reference calls: before that too, and
   too late from NumPy 2.5 on.

   Callers hold Python's lock, by ctypes.PyDLL. So each of these is one step for interrupts, and for all threads that hold
   that lock; NumPy computes without it. */

#define _GNU_SOURCE
#include "_arena.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_BLOCKS 8192 /* each may be two mappings more, of 65,530 that Linux allows by default */

typedef struct {
    const void *owner; /* the weak reference to the block, which lives as long as this is known */
    int is_dead;       /* and whose place in the file cannot be given away all the same */
    uintptr_t start;
    size_t nbytes;
    int descriptor;
    off_t offset;
} Block;

/* By their addresses; none of those that are alive overlap. */
static Block blocks[MOST_BLOCKS];
static size_t count;

/* How often a block was forgotten. */
long file_backed_ended;

static Block *of_owner(const void *owner) {
    for (size_t index = 0; index < count; index++)
        if (blocks[index].owner == owner)
            return blocks + index;
    return NULL;
}

/* The index of the first block that starts at `start` or later. */
static size_t first_from(uintptr_t start) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (blocks[middle].start < start)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The block that is alive and has pages among these bytes. */
static Block *among(uintptr_t start, size_t nbytes) {
    for (size_t index = first_from(start + nbytes); index--;) {
        Block *block = blocks + index;
        if (!block->is_dead) /* one before it ends before it begins */
            return block->start + block->nbytes > start ? block : NULL;
    }
    return NULL;
}

static void forget(Block *block) {
    size_t index = (size_t)(block - blocks);
    memmove(block, block + 1, (--count - index) * sizeof(Block));
    file_backed_ended++;
}

/* Puts a new mapping in the place of another. An errno, and nothing has changed, if the system has none; mmap with
   MAP_FIXED would leave a hole then. Where it fails to move what it has given, which takes a kernel without memory for its
   own, there may be one. */
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

static int replace_by_private(const Block *block) {
    return replace(block->start, block->nbytes, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, 1);
}

/* Lays whole pages of a block over those of a file, which has the same bytes from `offset` on. An errno, and nothing has
   changed, if there is a block already, or too many, or the system refuses. */
int file_backed_back(const void *owner, uintptr_t start, size_t nbytes, int descriptor, off_t offset) {
    if (among(start, nbytes))
        return EEXIST;
    if (count == MOST_BLOCKS)
        return ENOSPC;
    if (!arena_note_edges(start, start + nbytes))
        return ENOMEM;
    int error = replace(start, nbytes, MAP_SHARED, descriptor, offset, 0);
    if (error)
        return error;
    size_t index = first_from(start);
    memmove(blocks + index + 1, blocks + index, (count++ - index) * sizeof(Block));
    blocks[index] = (Block){owner, 0, start, nbytes, descriptor, offset};
    return 0;
}

/* Whether the place of a block in the file is its own still. */
int file_backed_is(const void *owner) { return of_owner(owner) != NULL; }

/* Whether any page of these bytes is of a file. */
int file_backed_at(uintptr_t start, size_t nbytes) { return among(start, nbytes) != NULL; }

void file_backed_drop(uintptr_t start, size_t nbytes) {
    Block *block = among(start, nbytes);
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

/* Copies bytes of one array from `address` on to a buffer, or from there; an errno. One that is private is copied too, and
   so is what lies before its first whole page or behind its last. */
int file_backed_copy(uintptr_t address, char *buffer, size_t nbytes, int writes) {
    const Block *block = among(address, nbytes);
    if (!block) {
        copy_in_memory(address, buffer, nbytes, writes);
        return 0;
    }
    uintptr_t end = address + nbytes, block_end = block->start + block->nbytes;
    uintptr_t from = block->start > address ? block->start : address, to = block_end < end ? block_end : end;
    copy_in_memory(address, buffer, from - address, writes);
    copy_in_memory(to, buffer + (to - address), end - to, writes);
    return move(block, from, buffer + (from - address), to - from, writes);
}

/* Makes a block private memory again; an errno, and it is as it was, if the system refuses. */
int file_backed_unback(const void *owner) {
    Block *block = of_owner(owner);
    if (!block || block->is_dead)
        return 0;
    int error = replace_by_private(block);
    if (!error)
        forget(block);
    return error;
}

/* Before a fork: what the parent writes later would be seen by the child. What the system refuses stays. */
void file_backed_unback_all(void) {
    for (size_t index = count; index--;)
        if (!blocks[index].is_dead && !replace_by_private(blocks + index))
            forget(blocks + index);
}

/* In a forked child, where the file is the parent's: what the child writes stays its own. A block that was to be private
   before the fork, and is not, has the file's bytes; one that had died has what its next owner has there. */
void file_backed_part(void) {
    while (count) {
        Block *block = blocks + count - 1;
        int failed = 0;
        if (!block->is_dead)
            failed = mmap((void *)block->start, block->nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
                          block->descriptor, block->offset) == MAP_FAILED;
        else if (!msync((void *)block->start, block->nbytes, MS_ASYNC)) /* its addresses are somebody's */
            failed = replace_by_private(block);
        if (failed) {
            fputs("chainer_ooc: a forked child cannot have its own copy of a parameter, for lack of memory\n", stderr);
            abort(); /* it would write to the parent's */
        }
        forget(block);
    }
}

/* Makes the addresses of a block that dies private memory, with any bytes. Where the system refuses, they stay on the file,
   which whoever has them next can use as well; its place in the file is never given to another then. */
static void end(Block *block) {
    block->is_dead = 1;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED; /* a limit has no say where as many pages leave */
    if (mmap((void *)block->start, block->nbytes, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
        return;
    arena_is_empty(block->start);
    forget(block);
}

void file_backed_freed(uintptr_t start, size_t nbytes) {
    Block *block = count ? among(start, nbytes) : NULL;
    if (block)
        end(block);
}

/* Whether weak references are called when the memory is freed already, and may be anybody's, as from NumPy 2.5 on. */
int file_backed_is_told_late;

/* What a weak reference calls as its block dies. */
void file_backed_died(const void *owner) {
    Block *block = of_owner(owner);
    if (!block)
        return;
    if (file_backed_is_told_late)
        block->is_dead = 1; /* whose addresses have been given back stays on the file, as above */
    else
        end(block);
}
