/* What the files of this folder share: a problem, a decision, and an evaluation of the two. */
#include <float.h>
#include <stddef.h>
#include <stdint.h>

#if FLT_EVAL_METHOD != 0
#error "floating point numbers have more bits here than in Python"
#endif

typedef int64_t Int;

enum { KEEP, SWAP, RECOMPUTE };
enum { HOME, LEAVING, AWAY, COMING };
enum { DONE, REFUSED, CHAINS_TOO_LONG };
enum { SHARES_NOTHING, SHARES_ALL, SHARES_SOME, SHARES_IF_IT_FITS };

/* A problem; lists of lists are one list with the offsets of its parts, one more than there are parts. */
typedef struct {
    Int positions, calls, maps, recalls;
    const Int *computing_bytes; /* by position, with what stands all the time */
    const Int *resident_change; /* by position and one more: of maps that no verdict moves */
    const Int *call_bytes, *step_bytes; /* what a call, or a step, allocates */
    const Int *input_offsets, *inputs; /* by call: feature maps alone, each once */
    const Int *made_offsets, *made; /* by call: the maps that it is the producer of */
    const Int *read_offsets, *reads; /* by step: each map once */
    const Int *nbytes, *producer, *leaves_at, *first_read, *last_read; /* by map; -1 for none */
    const Int *retained, *movable, *stays, *held; /* by map; movable by a verdict; kept, stays to the end */
    const double *seconds; /* by position */
    const double *write_seconds, *read_seconds; /* by map, and at last of one without bytes */
    double slowdown;
} Problem;

/* A decision. NULL stands for default leaves, starts without positions, and starts without gates. */
typedef struct {
    const uint8_t *verdicts; /* by map */
    const uint8_t *shared; /* by map, for SHARES_SOME */
    const Int *leaves; /* by map, or lower for the default */
    const Int *starts; /* by map, or NO_START */
    const Int *gates;
    Int gates_count, ahead, is_early, checks_memory, shares, synchronous, mapped, budget_bytes;
    Int without; /* a map that has no bytes, or -1 */
} Decision;

typedef struct {
    Int floor_bytes, scheduled_bytes, peak_bytes; /* the last one and `seconds` are set if it fits */
    double seconds;
} Answer;

#define NO_START INT64_MIN

/* One evaluation: what the files in Python hold in objects. */
typedef struct {
    const Problem *problem;
    const Decision *decision;
    Int shares, again_capacity, swap_ins, next_swap_in, leaving_first, leaving_end, moving_bytes, peak_bytes;
    double now, out_free, in_free;
    /* by position, and one more */
    Int *need, *free_bytes, *change, *chain_offsets;
    Int *leave_after, *first_use_at, *last_use_at; /* the first map of a list, or -1 */
    double *again_seconds;
    /* by map */
    Int *nbytes, *leaves, *first_use, *last_use, *restored, *is_wanted, *last_input, *is_to_come, *is_live;
    Int *next_leaving, *next_first, *next_last; /* the next map of a list, or -1 */
    Int *swap_in_map, *swap_in_start, *state, *is_copied, *is_recalled, *leaving;
    double *arrival, *whole_at;
    Int *waiting; /* room for each map, and for each input of each call */
    Int *in_chain; /* by call */
    Int *again; /* the calls of all chains */
} Run;

static inline Int most(Int one, Int other) { return other > one ? other : one; }

#pragma GCC visibility push(hidden)
/* schedule.c: what is needed where; and when swap-ins may start too. DONE, or why not. */
int timeline_demand(Run *run, Answer *answer);
int timeline_lay_out(Run *run, Answer *answer);

/* simulator.c: how long that takes. */
void timeline_simulate(Run *run, Answer *answer);
#pragma GCC visibility pop
