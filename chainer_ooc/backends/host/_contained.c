/* What memory groups leave (see groups.py), asked in C: arrays, and objects of Python's, are made where no code of Python
   may run. A signal handler would run in it, whose exception NumPy cannot pass on; and an object may be of a list that is
   just growing.

   Files of the system are read as in groups.py, which finds the groups and names files and fields. */

#define _GNU_SOURCE
#include "_arena.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_GROUPS 16
#define MOST_FIELDS 6
#define MOST_TEXT ((size_t)16 << 10)

typedef struct {
    char *used, *stat, *fields[MOST_FIELDS]; /* clean and dirty cache; dirty, being written; all cache, tmpfs */
    long long limit;
} Group;

static Group groups[MOST_GROUPS];
static int count;
static long ranks = 1;
static size_t aside; /* what is not for arrays */

/* Reads a small file; an empty text where it is missing. */
static void read_into(char *text, size_t most, const char *path) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, most - 1);
    text[length < 0 ? 0 : length] = 0;
    if (file >= 0)
        close(file);
}

static long long used_now(const Group *group) {
    char text[32];
    read_into(text, sizeof text, group->used);
    return strtoll(text, NULL, 10);
}

/* A field of memory.stat, which has a line for each; `missing` if it has none. */
static long long field(const char *text, const char *name, long long missing) {
    size_t length = strlen(name);
    for (const char *found = text; (found = strstr(found, name)); found += length)
        if ((found == text || found[-1] == '\n') && found[length] == ' ')
            return strtoll(found + length, NULL, 10);
    return missing;
}

/* What is left when that part of the page cache is taken back which needs no disk, if that is not enough without; with
   `in_the_end` what needs the disk too. */
static long long left(const Group *group, long long enough, int in_the_end) {
    long long unused = group->limit - used_now(group);
    if (unused >= enough)
        return unused;
    char text[MOST_TEXT];
    read_into(text, sizeof text, group->stat);
    long long cache = field(text, group->fields[0], 0) + field(text, group->fields[1], 0);
    long long all = field(text, group->fields[4], LLONG_MAX) - field(text, group->fields[5], 0);
    cache = cache < all ? cache : all; /* see groups.py */
    return unused + cache - (in_the_end ? 0 : field(text, group->fields[2], 0) + field(text, group->fields[3], 0));
}

static int all_leave(size_t nbytes, int in_the_end) {
    int before = errno, leave = 1;
    long long needed = (long long)(nbytes + aside) * ranks;
    for (int index = 0; leave && index < count; index++)
        leave = left(groups + index, needed, in_the_end) >= needed;
    errno = before;
    return leave;
}

extern void *PyEval_SaveThread(void), PyEval_RestoreThread(void *thread);

/* See _arena.h. */
int in_container(void) { return count > 0; }

/* See _arena.h. */
int container_leaves(size_t nbytes) { return !count || all_leave(nbytes, 0); }

/* See _arena.h. */
int container_waits(size_t nbytes) {
    if (container_leaves(nbytes) || !all_leave(nbytes, 1))
        return 0;
    void *thread = PyEval_SaveThread(); /* others go on: it takes as long as all that the machine has to write */
    sync();
    PyEval_RestoreThread(thread);
    return 1;
}

/* --- objects of Python's ------------------------------------------------------------------------------------------- */

/* A large object, such as the bytes that a snapshot is written from, is refused by no container: malloc has it, and the
   kernel ends the process. Pages that the pool keeps for the next arrays make room for it, as they do for any object that
   a limit of the system refuses. PyMemAllocatorEx of Python's API: */
typedef struct {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
} Allocator;

extern void PyMem_GetAllocator(int domain, Allocator *allocator);
extern void PyMem_SetAllocator(int domain, Allocator *allocator);
extern void *PyMem_Malloc(size_t nbytes), *PyObject_Malloc(size_t nbytes);
extern void PyMem_Free(void *block), PyObject_Free(void *block);
extern void *PyInterpreterState_Get(void), *PyInterpreterState_Main(void);

#define MOST_TIMES 16

static Allocator befores[MOST_TIMES]; /* what was there before each of ours, each once */
static int times, is_seen;

/* Whether the pool keeps anything. Another interpreter may have another lock than the pool's, and than the groups'. */
static int keeps(void) {
    return arena_unused_bytes() && PyInterpreterState_Get() == PyInterpreterState_Main();
}

static void prepare(size_t nbytes) {
    if (nbytes >= LEAST_BYTES && keeps() && !container_leaves(nbytes))
        arena_keep_at_most(0);
}

/* Gives back what the pool keeps; 0 if that is nothing. */
static int give_way(void) {
    if (!keeps())
        return 0;
    arena_keep_at_most(0);
    return 1;
}

static void *pythons_malloc(void *context, size_t nbytes) {
    const Allocator *before = context;
    is_seen = 1;
    prepare(nbytes);
    void *block = before->malloc(before->context, nbytes);
    return block || !give_way() ? block : before->malloc(before->context, nbytes);
}

static void *pythons_calloc(void *context, size_t number, size_t nbytes) {
    const Allocator *before = context;
    prepare(nbytes && number > SIZE_MAX / nbytes ? 0 : number * nbytes);
    void *block = before->calloc(before->context, number, nbytes);
    return block || !give_way() ? block : before->calloc(before->context, number, nbytes);
}

static void *pythons_realloc(void *context, void *block, size_t nbytes) {
    const Allocator *before = context;
    prepare(nbytes);
    void *moved = before->realloc(before->context, block, nbytes);
    return moved || !give_way() ? moved : before->realloc(before->context, block, nbytes);
}

static void pythons_free(void *context, void *block) {
    const Allocator *before = context;
    before->free(before->context, block);
}

/* Has an allocator of Python's give way, if none of ours is in its chain: one that was set before others' began to trace
   goes when they end, as tracemalloc does. */
static void watch(int domain, void *allocate(size_t), void release(void *)) {
    is_seen = 0;
    release(allocate(1));
    if (is_seen)
        return;
    Allocator now, *before = befores;
    PyMem_GetAllocator(domain, &now);
    while (before < befores + times && memcmp(before, &now, sizeof now))
        before++;
    if (before == befores + MOST_TIMES)
        return;
    if (before == befores + times)
        befores[times++] = now;
    Allocator ours = {before, pythons_malloc, pythons_calloc, pythons_realloc, pythons_free};
    PyMem_SetAllocator(domain, &ours);
}

/* Has buffers, such as those of lists, and objects be given way to, from now on. */
void contained_watch_objects(void) {
    watch(1, PyMem_Malloc, PyMem_Free);
    watch(2, PyObject_Malloc, PyObject_Free);
}

/* --- what arena.py calls ------------------------------------------------------------------------------------------- */

/* Begins a new list of groups; `shared_by` ranks divide what they leave. */
void contained_by_none(long shared_by, size_t aside_bytes) {
    while (count) {
        Group *last = groups + --count;
        free(last->used), free(last->stat);
        for (int index = 0; index < MOST_FIELDS; index++)
            free(last->fields[index]);
    }
    ranks = shared_by, aside = aside_bytes;
}

/* Adds a group; 0 if there is no place for it. */
int contained_by(long long limit, const char *used, const char *stat, const char *const *fields) {
    if (count == MOST_GROUPS)
        return 0;
    Group group = {strdup(used), strdup(stat), {0}, limit};
    int whole = group.used && group.stat;
    for (int index = 0; index < MOST_FIELDS; index++)
        whole &= (group.fields[index] = strdup(fields[index])) != NULL;
    groups[count] = group;
    count += whole;
    return whole;
}
