"""Near memory within its budget: every move of bytes out of it and back into it.

    eviction, budget        which map leaves when memory is short; what it may hold
    transit                 copies that are under way, and what an iteration wants of them
    late_recipes            how what has yielded its room is made again
    recomputation           how what is lost is made again
    mapped                  far memory that is read where it is
    residency               all of it, as iterations use it
"""
