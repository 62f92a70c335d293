"""How long computations and transfers take.

    costs                times as they were measured
    machine, machines/   a machine by its data sheet, and those that are known
    analytic             the times that follow
    network              how long ranks take to add up gradients
    on_cuda              the iteration as a GPU with cuDNN has it, from one of the host's
    gradients            of that, what backward takes and moves
    workspace            its memory with `ooc_workspace`, from one without
"""
