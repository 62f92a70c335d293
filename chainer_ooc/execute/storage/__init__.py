"""One block of near memory: where its bytes are, what holds it, and in which account it is.

    computing, reentry      what each thread runs: whose read it is, also in the midst of a change; the lock
    slots                   the places where Chainer holds arrays, and how a read of one is noticed
    held                    all slots of one block, and whether anything else has it
    states                  the closed set of states, and the checked table of transitions
    storage                 one block: nothing else changes its state
    account                 which storage an array lies on, and whose each byte in near memory is
"""
