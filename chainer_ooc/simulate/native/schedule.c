/* A decision over the positions of an iteration: chains, demand and swap-ins, in the functions and in the order of
   schedule/chains.py and schedule/schedule.py, where their reasons stand. Of the uses of a map the first and the last
   are enough. */
#include <string.h>

#include "timeline.h"

/* --- schedule/chains.py ------------------------------------------------------------------------------------------- */

static int is_shared(const Run *run, Int map) {
    return run->shares == SHARES_SOME ? run->decision->shared[map] : run->shares == SHARES_ALL;
}

static int is_absent(const Run *run, Int map) {
    return run->decision->verdicts[map] == RECOMPUTE && run->restored[map] < 0;
}

static void note_use(Run *run, Int map, Int position) {
    if (run->first_use[map] < 0 || position < run->first_use[map])
        run->first_use[map] = position;
    if (position > run->last_use[map])
        run->last_use[map] = position;
}

/* Notes the calls that give the maps on `waiting` for a step, in order, and the uses of those that they start from. */
static int chain(Run *run, Int position, Int waiting, Int *end) {
    const Problem *problem = run->problem;
    Int first = problem->calls, last = -1;
    while (waiting) {
        Int call = problem->producer[run->waiting[--waiting]];
        if (call < 0)
            return REFUSED;
        if (run->in_chain[call] == position)
            continue;
        run->in_chain[call] = position;
        first = call < first ? call : first;
        last = most(last, call);
        for (Int each = problem->input_offsets[call]; each < problem->input_offsets[call + 1]; each++) {
            Int map = problem->inputs[each];
            if (is_absent(run, map))
                run->waiting[waiting++] = map;
            else if (problem->retained[map])
                note_use(run, map, position);
            else if (problem->producer[map] >= 0)
                run->waiting[waiting++] = map;
        }
    }
    for (Int call = first; call <= last; call++)
        if (run->in_chain[call] == position) {
            if (*end == run->again_capacity)
                return CHAINS_TOO_LONG;
            run->again[(*end)++] = call;
        }
    return DONE;
}

static int find_chains(Run *run) {
    const Problem *problem = run->problem;
    Int end = 0, steps = problem->positions - problem->calls;
    memcpy(run->first_use, problem->first_read, problem->maps * sizeof(Int));
    memcpy(run->last_use, problem->last_read, problem->maps * sizeof(Int));
    memset(run->restored, -1, problem->maps * sizeof(Int));
    memset(run->again_seconds, 0, problem->positions * sizeof(double));
    memset(run->chain_offsets, 0, (steps + 1) * sizeof(Int));
    if (!memchr(run->decision->verdicts, RECOMPUTE, problem->maps))
        return DONE;
    memset(run->is_wanted, -1, problem->maps * sizeof(Int));
    memset(run->in_chain, -1, problem->calls * sizeof(Int));
    for (Int step = 0; step < steps; step++) {
        Int position = problem->calls + step, begin = end, wanted = 0;
        for (Int each = problem->read_offsets[step]; each < problem->read_offsets[step + 1]; each++)
            if (is_absent(run, problem->reads[each])) {
                run->waiting[wanted++] = problem->reads[each];
                run->is_wanted[problem->reads[each]] = position;
            }
        run->chain_offsets[step] = begin;
        int status = chain(run, position, wanted, &end);
        if (status != DONE)
            return status;
        for (; begin < end; begin++) {
            Int call = run->again[begin];
            run->again_seconds[position] += problem->seconds[call];
            for (Int each = problem->made_offsets[call]; each < problem->made_offsets[call + 1]; each++) {
                Int made = problem->made[each];
                if (run->decision->verdicts[made] == RECOMPUTE && problem->last_read[made] >= position
                    && (is_shared(run, made) || run->is_wanted[made] == position))
                    run->restored[made] = position;
            }
        }
    }
    run->chain_offsets[steps] = end;
    return DONE;
}

static Int chain_peak_bytes(Run *run, Int step) {
    const Problem *problem = run->problem;
    Int position = problem->calls + step, peak = 0, live = 0, to_come = 0;
    Int begin = run->chain_offsets[step], end = run->chain_offsets[step + 1];
    for (Int number = begin; number < end; number++) {
        Int call = run->again[number];
        for (Int each = problem->input_offsets[call]; each < problem->input_offsets[call + 1]; each++)
            run->last_input[problem->inputs[each]] = call;
        for (Int each = problem->made_offsets[call]; each < problem->made_offsets[call + 1]; each++)
            if (run->restored[problem->made[each]] == position) {
                run->is_to_come[problem->made[each]] = 1;
                to_come += run->nbytes[problem->made[each]];
            }
    }
    for (Int number = begin; number < end; number++) {
        Int call = run->again[number];
        peak = most(peak, live + problem->call_bytes[call] - to_come);
        for (Int each = problem->made_offsets[call]; each < problem->made_offsets[call + 1]; each++) {
            Int made = problem->made[each];
            if (run->is_to_come[made])
                to_come -= run->nbytes[made];
            else if (run->last_input[made] > call) {
                run->is_live[made] = 1;
                live += run->nbytes[made];
            }
            run->is_to_come[made] = 0;
        }
        for (Int each = problem->input_offsets[call]; each < problem->input_offsets[call + 1]; each++) {
            Int map = problem->inputs[each];
            if (run->last_input[map] == call) {
                live -= run->is_live[map] ? run->nbytes[map] : 0;
                run->is_live[map] = 0;
                run->last_input[map] = -1; /* as the next chain finds it */
            }
        }
    }
    return peak;
}

/* --- schedule/schedule.py: demand --------------------------------------------------------------------------------- */

static void reside(Run *run, Int map, Int first, Int last) {
    if (last >= first) {
        run->change[first] += run->nbytes[map];
        run->change[last + 1] -= run->nbytes[map];
    }
}

static int demand(Run *run) {
    const Problem *problem = run->problem;
    Int positions = problem->positions, end = positions - 1;
    memcpy(run->change, problem->resident_change, (positions + 1) * sizeof(Int));
    for (Int map = 0; map < problem->maps; map++) {
        Int verdict = run->decision->verdicts[map], used = run->first_use[map] >= 0, born = problem->producer[map] + 1;
        if (!problem->movable[map])
            continue;
        if (verdict == KEEP) {
            reside(run, map, born, used && !problem->stays[map] ? run->last_use[map] : end);
            continue;
        }
        reside(run, map, born, run->leaves[map]);
        if (!used || (run->decision->mapped && verdict == SWAP))
            continue;
        Int back = verdict == SWAP ? run->first_use[map] : run->restored[map];
        if (back < 0)
            return REFUSED;
        reside(run, map, back, problem->held[map] ? end : run->last_use[map]);
    }
    Int resident = 0;
    for (Int position = 0; position < positions; position++) {
        resident += run->change[position];
        run->need[position] = resident + problem->computing_bytes[position];
    }
    for (Int step = 0; step < positions - problem->calls; step++)
        if (run->chain_offsets[step] < run->chain_offsets[step + 1])
            run->need[problem->calls + step] += most(0, chain_peak_bytes(run, step) - problem->step_bytes[step]);
    return DONE;
}

/* --- schedule/schedule.py: swap-ins ------------------------------------------------------------------------------- */

static Int bisect_left(const Int *sorted, Int count, Int value) {
    Int low = 0;
    while (low < count) {
        Int middle = (low + count) / 2;
        if (sorted[middle] < value)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

/* Sets `start`. */
static int wished(const Decision *decision, Int map, Int use, Int *start) {
    if (decision->starts && decision->starts[map] != NO_START)
        *start = decision->starts[map] < use ? decision->starts[map] : use;
    else if (decision->is_early)
        *start = 0;
    else if (!decision->gates)
        *start = use - decision->ahead;
    else {
        Int before = bisect_left(decision->gates, decision->gates_count, use) - decision->ahead;
        if (before >= decision->gates_count)
            return REFUSED;
        *start = before >= 0 ? decision->gates[before] : 0;
    }
    return DONE;
}

static Int earliest(const Int *free_bytes, Int behind, Int use, Int nbytes) {
    for (Int position = use - 1; position >= behind; position--)
        if (free_bytes[position] < nbytes)
            return position + 1;
    return behind;
}

static int schedule_swap_ins(Run *run) {
    const Problem *problem = run->problem;
    const Decision *decision = run->decision;
    Int behind = problem->calls, start;
    run->swap_ins = 0;
    for (Int position = 0; position < problem->positions; position++)
        run->free_bytes[position] = decision->budget_bytes - run->need[position];
    for (Int use = 0; use < problem->positions; use++)
        for (Int map = run->first_use_at[use]; map >= 0; map = run->next_first[map]) {
            if (wished(decision, map, use, &start) != DONE)
                return REFUSED;
            behind = most(behind, start);
            if (decision->checks_memory)
                behind = earliest(run->free_bytes, behind, use, run->nbytes[map]);
            for (Int position = behind; position < use; position++)
                run->free_bytes[position] -= run->nbytes[map];
            run->swap_in_map[run->swap_ins] = map;
            run->swap_in_start[run->swap_ins++] = behind;
        }
    return DONE;
}

/* --- schedule/schedule.py ----------------------------------------------------------------------------------------- */

static void put(Int *heads, Int *next, Int position, Int map) {
    next[map] = heads[position];
    heads[position] = map;
}

/* The swapped maps by position: where they leave, and where they are read first and last. Each list ascends. */
static void link_swapped(Run *run) {
    const Problem *problem = run->problem;
    memset(run->leave_after, -1, problem->positions * sizeof(Int));
    memset(run->first_use_at, -1, problem->positions * sizeof(Int));
    memset(run->last_use_at, -1, problem->positions * sizeof(Int));
    for (Int map = problem->maps - 1; map >= 0; map--) {
        if (run->decision->verdicts[map] != SWAP)
            continue;
        put(run->leave_after, run->next_leaving, run->leaves[map], map);
        if (run->first_use[map] < 0)
            continue;
        put(run->first_use_at, run->next_first, run->first_use[map], map);
        if (!problem->held[map])
            put(run->last_use_at, run->next_last, run->last_use[map], map);
    }
}

static Int scheduled_bytes(Run *run) {
    const Problem *problem = run->problem;
    Int highest = 0, early = 0;
    memset(run->change, 0, (problem->positions + 1) * sizeof(Int));
    for (Int number = 0; number < run->swap_ins && !run->decision->mapped; number++) {
        Int map = run->swap_in_map[number], start = run->swap_in_start[number], use = run->first_use[map];
        if (start < use) {
            run->change[start] += run->nbytes[map];
            run->change[use] -= run->nbytes[map];
        }
    }
    for (Int position = 0; position < problem->positions; position++) {
        early += run->change[position];
        highest = most(highest, run->need[position] + early);
    }
    return highest;
}

int timeline_demand(Run *run, Answer *answer) {
    Int shares = run->decision->shares;
    for (run->shares = shares == SHARES_IF_IT_FITS ? SHARES_ALL : shares;; run->shares = SHARES_NOTHING) {
        int status = find_chains(run);
        if (status == DONE)
            status = demand(run);
        if (status != DONE)
            return status;
        answer->floor_bytes = 0;
        for (Int position = 0; position < run->problem->positions; position++)
            answer->floor_bytes = most(answer->floor_bytes, run->need[position]);
        if (answer->floor_bytes <= run->decision->budget_bytes || shares != SHARES_IF_IT_FITS
            || run->shares == SHARES_NOTHING)
            return DONE;
    }
}

int timeline_lay_out(Run *run, Answer *answer) {
    int status = timeline_demand(run, answer);
    if (status != DONE)
        return status;
    link_swapped(run);
    if (schedule_swap_ins(run) != DONE)
        return REFUSED;
    answer->scheduled_bytes = scheduled_bytes(run);
    return DONE;
}
