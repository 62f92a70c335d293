"""A decision laid out over the positions of an iteration.

    chains      what runs again before which step
    schedule    what each position needs, and when each swap-in may start
"""
