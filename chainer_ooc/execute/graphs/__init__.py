"""The graphs that were recorded, their plans, and which of them an iteration seems to be.

    orders                  a plan by position
    times                   what calls and steps take under a plan, as far as it was measured
    saved_plans             plans in a file
    shared_plans            plans that ranks have in common
    planner                 a plan at once, and a better one while training goes on
    likeness                how a graph is compared with what runs, and with others
    graph                   one recorded graph with its plans
    known_needs             what recorded graphs need says what unknown ones may need
    graphs                  all of them
    reuse                   what is read after its last known use: no plan loses it any more
    following               the graph that the iteration in hand seems to be (P8)
"""
