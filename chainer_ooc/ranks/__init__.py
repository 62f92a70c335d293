"""Several processes of one training (ranks), started by an MPI launcher: what those on one machine share.

    node.py         how many of them are on this machine, and each one's share
    threads.py      whether they compute in more threads than there are cores
    failure.py      an error of one ends all
    agreement.py    which of their plans all of them follow; they tell each other so by messages, never waited for

Nothing here takes part in an exchange while a training runs: a rank that does not would keep all others waiting.
"""
