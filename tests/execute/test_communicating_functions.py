"""Functions that communicate with other processes run once: run again, they would wait for processes that do not."""
import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.functions.normalization import batch_normalization

from chainer_ooc.errors import LostMapError
from chainer_ooc.execute.functions.prototype import prepare, prepare_afterwards
from support.trainings.ooc_training import Training, assert_same_bits, ooc


class Communicator:
    """One process's part of a mean over all; it counts how often it takes part."""

    __module__ = 'chainermn.communicators.naive_communicator'
    times = 0

    def mean(self, array):
        self.times += 1
        return array


class Together(batch_normalization.GeneralBatchNormalizationImpl):
    """As chainermn.links.MultiNodeBatchNormalization has it computed."""

    def __init__(self, comm):
        self.comm = comm

    def get_mean_and_var(self, axis, gamma, x, xp, interm_dtype):
        mean, var = super().get_mean_and_var(axis, gamma, x, xp, interm_dtype)
        return self.comm.mean(mean), var


class Selector:
    """What chooses that."""

    __module__ = 'chainermn.functions.batch_normalization'

    def __init__(self, comm):
        self.comm = comm

    def __call__(self, function, inputs):
        return Together(self.comm)


class Sum(chainer.FunctionNode):
    """One of the program's, which says that it may run again."""

    ooc_recompute = True

    def __init__(self, comm):
        self.comm = comm

    def forward(self, inputs):
        return self.comm.mean(inputs[0]),

    def backward(self, indexes, grads):
        return grads


def normalization(comm):
    return batch_normalization.BatchNormalization(impl_selector=Selector(comm))


@pytest.mark.parametrize('make', [normalization, Sum])
def test_it_is_not_prepared_to_run_again(make):
    function = make(Communicator())
    assert prepare(function) is None
    x = chainer.Variable(np.ones((4, 3), 'f'))
    function.apply((x, np.ones(3, 'f'), np.zeros(3, 'f')) if make is normalization else (x,))
    with pytest.raises(LostMapError, match='communicates with other processes'):
        prepare_afterwards(function)


@pytest.mark.usefixtures('verdict_mixes')
@pytest.mark.parametrize('policy', ['swap-all', 'recompute-all', 'mix-1'])
def test_it_communicates_as_often_as_in_plain_chainer(policy):
    outcomes, times = [], []
    for each in None, policy:
        training = Training('residual')
        comm, model = Communicator(), training.model

        def forward(x, t, comm=comm, model=model):
            h = F.relu(normalization(comm).apply((model.conv0(x), model.bn0.gamma, model.bn0.beta))[0])
            return F.softmax_cross_entropy(model.fc(F.average_pooling_2d(F.tanh(h), h.shape[2:])), t)

        training.forward = lambda training=training, forward=forward: forward(
            *training.batch(np.random.RandomState(training.number)))
        if each is None:
            training.iterate(3)
        else:
            with ooc(each):
                training.iterate(3)
            assert training.outcome.stats[-1].recompute or policy == 'swap-all'
        outcomes.append(training.finish())
        times.append(comm.times)
    assert times == [3, 3]
    assert_same_bits(outcomes[1], outcomes[0].bits)
