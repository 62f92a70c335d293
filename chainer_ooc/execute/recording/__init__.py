"""What an iteration did, written down while it runs.

    recorder                the rows of calls, steps and feature maps, and a trace of them
    places                  the link and the line of code of a call
    expected                what parameters will take that do not yet
    parameters              the arrays that stand through an iteration: weights, gradients, the optimizer's state
    registration            which feature maps a function touches: inputs, outputs, what it retains and what it hides
"""
