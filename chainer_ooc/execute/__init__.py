"""Runs iterations: what is in near memory, what is away, and what waits for what.

In the order of a forward call and of a backward step, from what Chainer's seams call down to a block's bytes. Each
folder imports only those below it; its own docstring lists its files::

    manager                 what Chainer's seams call, in the order of an iteration
    sessions                the session of the calling thread and device
    session                 sees iterations begin and end; the lock around what changes
    iteration/              one iteration            before_call   makes room, notes what may be written to
                                                     after_call    registers, follows, lets maps leave
                                                     before_step   brings back what backward reads, makes room
                                                     after_step    drops what is over
    graphs/                 recorded graphs and their plans: which one is this, and what leaves or comes now
    on_file                 parameters, gradients and the optimizer's state in far memory
    recording/              rows of what calls and steps touch, from which a trace is made
    memory/                 near memory within its budget: swap-outs, swap-ins, eviction, recomputation
    functions/              what is known about a function, and how its call is run again
    storage/                one block: its state, what holds it, and how a read of what is away is noticed

    lessons                 what the next iterations learn from those that have ended: plans, the default budget, advice
    alone                   calls that belong to no graph which a backward pass will run
    finished                an iteration that has ended: its statistics, and how it ran
    tally                   what an iteration cost, for `chainer_ooc.stats()`
    shortage                what a program is told when a computation got no memory
    other_threads           whether other threads are at work meanwhile
    log                     the logger
"""
