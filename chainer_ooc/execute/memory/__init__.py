"""Near memory within its budget: every move of bytes out of it and back into it.

    eviction, budget        who goes when memory is short; what it may hold
    transit                 copies that are under way, and what an iteration says about them
    late_recipes            how what has made room is made again, though nobody had planned for that
    recomputation           how what is lost is made again
    mapped                  far memory that is read where it is
    exposure                what has to be made again before the program may write to what it was made from
    residency               all of it, as iterations use it
"""
