"""Allocators of near memory, on paper: how much of it fragmentation takes away.

    allocator    what each of them can do, and one that loses nothing
    pool         CuPy's best fit
    virtual      virtual addresses over chunks
    events       the mallocs and frees of an iteration, run through one of them
"""
