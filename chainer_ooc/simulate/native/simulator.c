/* How long a decision that was laid out takes: the functions of simulate/simulator.py in their order, without its log. */
#include <string.h>

#include "timeline.h"

static double later(double one, double other) { return other > one ? other : one; }

static double write_seconds(const Run *run, Int map) {
    return run->problem->write_seconds[map == run->decision->without ? run->problem->maps : map];
}

static double read_seconds(const Run *run, Int map) {
    return run->problem->read_seconds[map == run->decision->without ? run->problem->maps : map];
}

static void swap_in(Run *run, Int map) {
    run->state[map] = COMING;
    double began = later(later(run->now, run->in_free), run->whole_at[map]);
    run->in_free = run->arrival[map] = began + read_seconds(run, map);
}

static void gone(Run *run, Int map) {
    run->is_copied[map] = 1;
    if (run->state[map] == LEAVING) {
        run->state[map] = AWAY;
        run->moving_bytes -= run->nbytes[map];
        if (run->is_recalled[map])
            swap_in(run, map);
    }
}

static int is_leaving(const Run *run) { return run->leaving_first < run->leaving_end; }

static void reap(Run *run) {
    while (is_leaving(run) && run->whole_at[run->leaving[run->leaving_first]] <= run->now)
        gone(run, run->leaving[run->leaving_first++]);
}

static void wait(Run *run, double until) {
    if (until > run->now)
        run->now = until;
}

/* Waits for the oldest swap-out. */
static void wait_for_one(Run *run) {
    Int map = run->leaving[run->leaving_first++];
    wait(run, run->whole_at[map]);
    gone(run, map);
}

static void make_room(Run *run, Int position) {
    while (run->moving_bytes + run->need[position] > run->decision->budget_bytes && is_leaving(run))
        wait_for_one(run);
}

static void count_once(Run *run, Int position) {
    if (run->decision->mapped)
        return;
    for (Int map = run->first_use_at[position]; map >= 0; map = run->next_first[map]) {
        if (run->state[map] != LEAVING && run->state[map] != COMING)
            continue;
        run->moving_bytes -= run->nbytes[map];
        if (run->state[map] == LEAVING && run->problem->recalls)
            run->state[map] = HOME;
        else if (run->state[map] == LEAVING)
            swap_in(run, map);
    }
}

static double beside_copies(const Run *run, double seconds) {
    double copying_seconds = later(run->out_free, run->in_free) - run->now, slowdown = run->problem->slowdown;
    if (copying_seconds <= 0 || slowdown == 0)
        return seconds;
    double all = seconds * (1 + slowdown), some = seconds + copying_seconds * (slowdown / (1 + slowdown));
    return some < all ? some : all;
}

static void compute(Run *run, Int position) {
    run->now = run->now + beside_copies(run, run->again_seconds[position] + run->problem->seconds[position]);
    run->peak_bytes = most(run->peak_bytes, run->moving_bytes + run->need[position]);
}

static void swap_out(Run *run, Int map) {
    double began = later(run->now, run->out_free);
    run->out_free = began + write_seconds(run, map);
    run->whole_at[map] = run->out_free;
    run->leaving[run->leaving_end++] = map;
    run->state[map] = LEAVING;
    run->is_copied[map] = 0;
    run->moving_bytes += run->nbytes[map];
}

static void drop(Run *run, Int map) {
    if (!run->is_copied[map]) {
        run->state[map] = LEAVING;
        run->moving_bytes += run->nbytes[map];
    }
}

static void fetch(Run *run, Int map, Int position) {
    while (run->decision->mapped && run->state[map] == LEAVING && is_leaving(run))
        wait_for_one(run);
    if (run->state[map] == AWAY) {
        make_room(run, position);
        swap_in(run, map);
    }
    if (run->state[map] != HOME) {
        wait(run, run->arrival[map]);
        reap(run);
    }
    run->state[map] = HOME;
}

/* Whether there was memory for it. */
static int start(Run *run, Int map, Int position) {
    Int mapped = run->decision->mapped, use = run->first_use[map];
    Int beside_bytes = use == position || mapped ? 0 : run->nbytes[map];
    if (mapped && run->state[map] == LEAVING) {
        run->is_recalled[map] = 1;
        return 1;
    }
    if (run->state[map] == AWAY) {
        if (!mapped && run->moving_bytes + beside_bytes + run->need[position] > run->decision->budget_bytes)
            return 0;
        swap_in(run, map);
        run->moving_bytes += beside_bytes;
    } else if (run->state[map] == LEAVING && !run->problem->recalls)
        swap_in(run, map);
    if (run->state[map] != HOME)
        run->state[map] = COMING;
    return 1;
}

static void start_swap_ins(Run *run, Int position) {
    while (run->next_swap_in < run->swap_ins && run->swap_in_start[run->next_swap_in] <= position) {
        Int map = run->swap_in_map[run->next_swap_in];
        if (run->first_use[map] >= position && !start(run, map, position))
            return;
        run->next_swap_in++;
    }
}

static void synchronise(Run *run) {
    if (is_leaving(run))
        wait(run, run->out_free);
    wait(run, run->in_free);
    reap(run);
}

void timeline_simulate(Run *run, Answer *answer) {
    Int maps = run->problem->maps, last = run->problem->positions - 1;
    run->now = run->out_free = run->in_free = 0.0;
    run->peak_bytes = run->moving_bytes = run->leaving_first = run->leaving_end = run->next_swap_in = 0;
    for (Int map = 0; map < maps; map++) {
        run->state[map] = HOME;
        run->is_copied[map] = 1;
        run->is_recalled[map] = 0;
        run->arrival[map] = run->whole_at[map] = 0.0;
    }
    for (Int position = 0; position <= last; position++) {
        if (position >= run->problem->calls) {
            count_once(run, position);
            start_swap_ins(run, position);
        }
        reap(run);
        for (Int map = run->first_use_at[position]; map >= 0; map = run->next_first[map])
            fetch(run, map, position);
        make_room(run, position);
        compute(run, position);
        for (Int map = run->leave_after[position]; map >= 0; map = run->next_leaving[map])
            swap_out(run, map);
        for (Int map = run->last_use_at[position]; map >= 0; map = run->next_last[map])
            drop(run, map);
        if (run->decision->synchronous && position < last)
            synchronise(run);
    }
    answer->seconds = run->now;
    answer->peak_bytes = run->peak_bytes;
}
