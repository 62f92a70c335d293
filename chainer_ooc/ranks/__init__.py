"""Several processes of one training (ranks), started by an MPI launcher: what those on one machine share.

    node.py     how many of them are on this machine, and each one's share
    threads.py  whether they compute in more threads than there are cores
    failure.py  an error of one ends all
    messages.py what they tell each other while a training runs: posted, polled for, never waited for
    agreement.py    which of their plans all of them follow

Nothing here takes part in an exchange while a training runs: a rank that does not would keep all others waiting.
"""
