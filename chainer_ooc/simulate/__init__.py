"""The timeline of an iteration, worked out without running it.

    timeline             what each stream does when, and where the computation waits
    simulator            works it out
    compiled, native/    its seconds and bytes alone, in C, for searches
    exchange             adds the time in which ranks add up their gradients
"""
