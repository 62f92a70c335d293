"""Records a training of the program's for a moment, and leaves it as it was.

    profile      an updater, a trainer or a model with a batch runs two iterations, and gives its trace
    reach        what its objects hold, followed from a few of them
    untouched    what such an iteration changes, kept before and put back afterwards
"""
