"""Runs iterations: what is in near memory, what is away, and who waits for whom.

The files, from what a program calls down to what holds its bytes; each imports those below it alone:

    manager                                     which session a call belongs to: one for each thread and device
    session                                     sees iterations begin and end; one lock around what changes
    iteration                                   one forward call, one backward step, from top to bottom
    departures, look_ahead, liveness            maps on their way out; on their way in; their end
    room, writes                                what a computation needs; who may write to what it is given
    following, plans, saved_plans, times        the known graph that an iteration seems to be, and its plan
    orders                                      a plan by position
    seen, expected                              what a call touches; what its parameters will bring later
    mapped, residency, exposure                 every move of bytes; what has to be made before the program may write
    revival, afterwards                         how what is lost is made again, also without having been planned
    transit                                     copies on their way, and what an iteration says about them
    budget, eviction                            what near memory may hold, and who goes when it is short
    recipe, prototype                           how a call is run again; what is known about functions
    company                                     whether other threads are at work meanwhile
    account                                     whose each byte in near memory is
    storage                                     one block: its states, its places, and who may change what
    places                                      where Chainer holds arrays, and how a read is noticed
    computing, reentry                          what each thread runs: whose read it is, also in the midst of a change
    patience                                    for how long what is known already is recorded
    tally, freezing, log                        what it cost; what becomes a trace; what is said
"""
