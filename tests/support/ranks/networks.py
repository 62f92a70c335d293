"""Small networks for several ranks.

`NETWORKS` maps a name to a function of a communicator; it returns a model, which maps a batch to a loss, and a function
that makes the batch from a random state and its keyword `size`.
"""
import chainermn

from support.trainings import ooc_networks


def alone(name):
    """A network of `ooc_networks` on each rank, with batches of another size on each."""
    def make(comm):
        model, batch = ooc_networks.NETWORKS[name]()
        return model, lambda random, size: batch(random, size=size + comm.rank)
    return make


def normalized_together(comm):
    """Batch normalization over all ranks' batches."""
    model, batch = ooc_networks.NETWORKS['residual']()
    return chainermn.links.create_mnbn_model(model, comm), lambda random, size: batch(random, size=size + comm.rank)


NETWORKS = {'residual': alone('residual'), 'hidden': alone('hidden'), 'normalized-together': normalized_together}
