/* What compiled.py calls: a problem is checked once, then decisions on it are evaluated.

   The same as `schedule.lay_out` and `simulator.run`, for searches that ask it thousands of times. Floating point
   operations are those of the Python files in their order, and are not contracted: results are equal to the last bit.
   All memory is the caller's. Every index is looked at before it is used: those of a problem in `timeline_check`, those
   of a decision in `is_sound`. What Python fails at is REFUSED here, and left to Python. */
#include <string.h>

#include "timeline.h"

/* Offsets that ascend from 0, and elements from 0 to below `end`. */
static int are_within(const Int *offsets, Int count, const Int *elements, Int end) {
    if (offsets[0] != 0)
        return 0;
    for (Int part = 0; part < count; part++)
        if (offsets[part + 1] < offsets[part])
            return 0;
    for (Int each = 0; each < offsets[count]; each++)
        if (elements[each] < 0 || elements[each] >= end)
            return 0;
    return 1;
}

/* Whether all indices of a problem are in range. */
int timeline_check(const Problem *problem) {
    Int positions = problem->positions, calls = problem->calls, maps = problem->maps;
    if (maps < 0 || calls < 0 || positions < calls
        || !are_within(problem->input_offsets, calls, problem->inputs, maps)
        || !are_within(problem->made_offsets, calls, problem->made, maps)
        || !are_within(problem->read_offsets, positions - calls, problem->reads, maps))
        return 0;
    for (Int map = 0; map < maps; map++)
        if (problem->producer[map] < -1 || problem->producer[map] >= calls || problem->leaves_at[map] < 0
            || problem->leaves_at[map] >= positions || problem->first_read[map] < -1
            || problem->last_read[map] < problem->first_read[map] || problem->last_read[map] >= positions)
            return 0;
    return 1;
}

#ifdef __SANITIZE_ADDRESS__ /* has a use beyond the end of one array found, though all are one piece of memory */
#include <sanitizer/asan_interface.h>
#define GUARD 2
#define FORBID(memory) ASAN_POISON_MEMORY_REGION(memory, GUARD * sizeof(Int))
#define ALLOW(memory, count) ASAN_UNPOISON_MEMORY_REGION(memory, (count) * sizeof(Int))
#else
#define GUARD 0
#define FORBID(memory)
#define ALLOW(memory, count)
#endif

/* Room for so many numbers, from the caller's memory. */
static Int *take(Int **memory, Int count) {
    Int *taken = *memory;
    FORBID(taken + count);
    *memory += count + GUARD;
    return taken;
}

#define BY_POSITION 8
#define BY_MAP 20

/* How many numbers of 8 bytes an evaluation needs beside the calls of its chains. */
Int timeline_words(const Problem *problem) {
    return BY_POSITION * (problem->positions + 1 + GUARD) + BY_MAP * (problem->maps + GUARD) + problem->maps + GUARD
        + problem->input_offsets[problem->calls] + problem->calls + GUARD;
}

static void divide(Run *run, Int *memory) {
    const Problem *problem = run->problem;
    Int **by_position[] = {&run->need, &run->free_bytes, &run->change, &run->chain_offsets, &run->leave_after,
                           &run->first_use_at, &run->last_use_at};
    Int **by_map[] = {
        &run->nbytes, &run->leaves, &run->first_use, &run->last_use, &run->restored, &run->is_wanted, &run->last_input,
        &run->is_to_come, &run->is_live, &run->next_leaving, &run->next_first, &run->next_last, &run->swap_in_map,
        &run->swap_in_start, &run->state, &run->is_copied, &run->is_recalled, &run->leaving};
    _Static_assert(sizeof by_position / sizeof *by_position + 1 == BY_POSITION, "as timeline_words counts them");
    _Static_assert(sizeof by_map / sizeof *by_map + 2 == BY_MAP && sizeof(double) == sizeof(Int), "likewise");
    for (size_t each = 0; each < BY_POSITION - 1; each++)
        *by_position[each] = take(&memory, problem->positions + 1);
    run->again_seconds = (double *)take(&memory, problem->positions + 1);
    for (size_t each = 0; each < BY_MAP - 2; each++)
        *by_map[each] = take(&memory, problem->maps);
    run->arrival = (double *)take(&memory, problem->maps);
    run->whole_at = (double *)take(&memory, problem->maps);
    run->waiting = take(&memory, problem->maps + problem->input_offsets[problem->calls]);
    run->in_chain = take(&memory, problem->calls);
    run->again = memory;
}

/* Whether a decision names maps and positions that there are; sets what it says about each map. */
static int is_sound(Run *run) {
    const Problem *problem = run->problem;
    const Decision *decision = run->decision;
    if (decision->without < -1 || decision->without >= problem->maps
        || (decision->without >= 0 && !problem->movable[decision->without]) || decision->shares < SHARES_NOTHING
        || decision->shares > SHARES_IF_IT_FITS || (decision->shares == SHARES_SOME && !decision->shared)
        || decision->gates_count < 0)
        return 0;
    for (Int map = 0; map < problem->maps; map++) {
        Int leave = decision->leaves ? decision->leaves[map] : 0;
        run->leaves[map] = most(leave, problem->leaves_at[map]);
        run->nbytes[map] = map == decision->without ? 0 : problem->nbytes[map];
        run->last_input[map] = -1;
        run->is_to_come[map] = run->is_live[map] = 0;
        if (decision->verdicts[map] > RECOMPUTE || run->leaves[map] >= problem->positions)
            return 0;
    }
    return 1;
}

/* Makes a run ready, in `words` numbers of memory: DONE, or why not. */
static int begin(Run *run, Int *memory, Int words) {
    run->again_capacity = words - timeline_words(run->problem);
    if (run->again_capacity < 0)
        return CHAINS_TOO_LONG;
    ALLOW(memory, words);
    divide(run, memory);
    return is_sound(run) ? DONE : REFUSED;
}

/* Evaluates a decision in `words` numbers of memory: DONE, or why not. */
int timeline_evaluate(const Problem *problem, const Decision *decision, Int *memory, Int words, Answer *answer) {
    Run run = {.problem = problem, .decision = decision};
    int status = begin(&run, memory, words);
    if (status == DONE)
        status = timeline_lay_out(&run, answer);
    if (status == DONE && most(answer->floor_bytes, answer->scheduled_bytes) <= decision->budget_bytes)
        timeline_simulate(&run, answer);
    ALLOW(memory, words);
    return status;
}

/* The same for what a decision needs at each position, where each map is read first in backward, by chains as well, and
   before which position a chain makes it again; -1 for none. */
int timeline_needs(const Problem *problem, const Decision *decision, Int *memory, Int words, Int *need, Int *first_use,
                   Int *restored) {
    Run run = {.problem = problem, .decision = decision};
    Answer answer;
    int status = begin(&run, memory, words);
    if (status == DONE)
        status = timeline_demand(&run, &answer);
    if (status == DONE) {
        memcpy(need, run.need, problem->positions * sizeof(Int));
        memcpy(first_use, run.first_use, problem->maps * sizeof(Int));
        memcpy(restored, run.restored, problem->maps * sizeof(Int));
    }
    ALLOW(memory, words);
    return status;
}
