"""One iteration: its forward calls, then the steps of its backward passes.

    writes                  which functions may write to what they are given, and whether any did
    liveness                the end of maps: each is dropped after its last backward use
    beside, room            what stands in near memory beside the maps; room for what a computation needs
    left                    what iterations leave in near memory, and when it is the program's own
    departures, prefetch    maps on their way out; on their way in
    recipes                 of the calls that may run again
    comparison              whether what runs is what was recorded
    unmoved                 calls and steps that touch only what never moves: they are compared and counted
    quiet                   an iteration in which nothing has to leave: it is compared or counted, and nothing else
    compared                what has run of it, of a known graph, or of one that need not be known
    iteration               one call and one step from top to bottom
"""
