"""What execution follows.

    plan      a plan
    making    how it is made for a policy, or refused with a budget that works
    saved     how it outlives its process
    run       how an iteration ran under it
    gap       how far it is from the best that is possible
"""
