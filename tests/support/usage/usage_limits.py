"""Programs that ask for more than out-of-core gives today, each with the reason; the guide tells users.

Bits are compared all the same: nothing here may ever give another value.
"""

#: Programs that may be refused once more at 1.02 times a floor that was named without doubt.
UNFORESEEN = {
    'interrupts-interrupted_graph_kept_beside_the_next': 'it keeps a whole graph beside the next, for the first time',
    'objects-variables_deeply_copied': 'what it copies had been evicted, for the small budget, when a floor was named',
    'threads-batches_from_a_loader_thread':
        'what the loader allocates counts in a recording that it falls into, refused with a doubt, and in no other',
}

#: Programs that read, or run backward over, what has made room after its last known use and cannot be made again, since
#: parameters have changed or random numbers were drawn: LostMapError under a short budget, as the guide says.
USED_UP = {
    'graphs-maps_read_after_backward', 'graphs-graph_walked', 'graphs-truncated_backpropagation_without_unchain',
    'interrupts-interrupted_after_a_step_then_backward_again', 'objects-unset_after_training'}


#: Programs whose forked child reads what was away when it was forked: SpillError, as the guide says.
AWAY_WHEN_FORKED = {'forks-child_forks_once_more', 'forks-child_outlives_the_parents_iteration'}
