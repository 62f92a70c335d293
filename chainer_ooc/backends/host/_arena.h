/* What file-backed blocks ask of the arena. */

#include <stdint.h>

/* Notes that mappings of the kernel's begin at these addresses, if they are of the arena; 0 if there is no memory for it. */
int arena_note_edges(uintptr_t one, uintptr_t other);
