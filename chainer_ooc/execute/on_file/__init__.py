"""Parameters, their gradients and the optimizer's state in far memory (`chainer.config.ooc_parameters`).

    parameters.py  which of them lie there, and that no computation leaves their bytes in near memory
    update.py      updates that need a part of a parameter at a time
"""
