"""Programs that ask for more than out-of-core gives today, each with the reason; the guide tells users.

Bits are compared all the same: nothing here may ever give another value.
"""

_OTHER_THREADS = 'what other threads allocate while a graph is recorded counts, and plans know no graph that spans them'
_LATER = 'it does later what the recorded iterations did not, and what no recording can tell'

#: Programs that may be refused once more at 1.02 times a named floor, or pass a budget by an estimate.
UNFORESEEN = {
    'forks-child_between_iterations': _LATER,
    'graphs-gradients_accumulated': 'gradients stand in backward for the first time after the plan was made',
    'graphs-gradients_accumulated_over_a_split_batch': 'gradients stand in backward for the first time later',
    'graphs-gan_in_several_critic_steps': "the generator's optimizer gets its state later",
    'graphs-learning_to_learn': 'the second graph is known after the first floor is named',
    'graphs-gradient_penalty': 'the second graph is known after the first floor is named',
    'graphs-graph_walked': _LATER,
    'interrupts-interrupted_graph_kept_beside_the_next': _LATER,
    'interrupts-forward_abandoned': _LATER,
    'interrupts-interrupted_after_a_step_then_backward_again': 'what is read again has counted as gone',
    'interrupts-interrupted_at_any_line_then_the_same_graph': _LATER,
    'interrupts-interrupted_at_any_line_then_another_batch': _LATER,
    'interrupts-interrupted_at_any_line_then_the_same_forward': _LATER,
    'interrupts-interrupted_by_a_timer_thread': _LATER,
    'networks-n_step_lstm': 'sequences of a length that was never seen run under an estimate',
    'objects-unset_between_forward_and_backward': 'backward runs while nobody looks, and leaves its gradients',
    'objects-variables_deeply_copied': 'the copies are another graph, which the first floor does not know',
    'writes-adversarial_batch': _LATER,
}

#: Programs that read, or run backward over, what has made room after its last known use and cannot be made again, since
#: parameters have changed or random numbers were drawn: LostMapError under a short budget, as the guide says.
USED_UP = {
    'graphs-maps_read_after_backward', 'graphs-graph_walked', 'graphs-truncated_backpropagation_without_unchain',
    'interrupts-interrupted_after_a_step_then_backward_again', 'objects-unset_after_training'}


#: Programs whose forked child reads what was away when it was forked: SpillError, as the guide says.
AWAY_WHEN_FORKED = {'forks-child_forks_once_more', 'forks-child_outlives_the_parents_iteration'}


def unforeseen(name):
    """Why a program may be refused once more, or None."""
    return UNFORESEEN.get(name, _OTHER_THREADS if name.startswith('threads-') else None)
