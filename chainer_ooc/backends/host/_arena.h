/* What the arena, file-backed blocks and the container's guard ask of each other. */

#include <stddef.h>
#include <stdint.h>

/* Arrays, and objects of Python's, of fewer bytes are none of ours. */
#define LEAST_BYTES ((size_t)256 << 10)

/* Notes that mappings of the kernel's begin at these addresses, if they are of the arena; 0 if there is no memory for it. */
int arena_note_edges(uintptr_t one, uintptr_t other);

/* Tells that a block is to be freed: what of it lies on a file becomes private memory before. */
void file_backed_freed(uintptr_t start, size_t nbytes);

/* Tells that a block, if one of the arena's has this address, has no pages: what is freed of it is nothing to keep. */
void arena_is_empty(uintptr_t address);

/* Gives free pages back to the system until so many bytes are left. */
void arena_keep_at_most(size_t nbytes);
size_t arena_unused_bytes(void);

/* Whether there is a container; whether it leaves so many bytes, or there is none. */
int in_container(void);
int container_leaves(size_t nbytes);

/* Waits for the disk to have what was written to files, if so many bytes lack that alone; whether it has waited. */
int container_waits(size_t nbytes);
