"""Which feature maps stay, leave, or are computed again.

    policies/     each a function from a problem to a decision
    kinds         layers by the names of their functions, for policies that decide by them
    search        what searches share: what a decision comes to, the best so far, when to stop
    annealing     the search that tries small changes at random
    progress      the bar that a search shows
    bound/        the time that no decision is below
"""
