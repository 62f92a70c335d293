"""Drawn programs that copy Variables, hold the copies, read them and write to them at drawn moments.

A copy shares the list in which the Variable has its array, and may outlive it.
"""
import copy
import dataclasses
import random

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError
from support.trainings.ooc_training import ooc

MARGIN = 1.02
FUNCTIONS = (F.relu, F.tanh, F.sigmoid, F.identity, lambda h: h * 1.5, lambda h: F.dropout(h, 0.3))
POLICIES = ('auto', 'pooch', 'swap-all', 'superneurons', 'sublinear', 'tensor-cache', 'vdnn-all', 'unified', 'keep')


@dataclasses.dataclass
class Program:
    """The same program each time that it runs, by its seed."""

    seed: int

    def run(self, note, iterations=6):
        draw = random.Random(self.seed)
        np.random.seed(self.seed)
        rows, width = draw.choice([40, 60, 100]), draw.choice([50, 100])
        model = chainer.ChainList(*(L.Linear(width, width) for _ in range(draw.randint(2, 4))))
        optimizer = draw.choice([chainer.optimizers.SGD, chainer.optimizers.Adam])().setup(model)
        layers = [(layer, [(draw.choice(FUNCTIONS), draw.random(), draw.random()) for _ in range(2)])
                  for layer in model]
        self.held_iterations, self.holds_variables = draw.choice([0, 1, 2]), draw.random() < 0.4
        self.when = draw.choice(['never', 'after forward', 'after backward', 'in the next iteration', 'writes'])
        before = []
        for number in range(iterations):
            copies, loss = self.forward(layers, chainer.Variable(np.random.rand(rows, width).astype('f4')))
            if self.when == 'after forward':
                note(copies)
            if self.when == 'writes' and copies:
                copies[-1].array[:1] *= 0.5 if number % 2 else 1
            model.cleargrads()
            loss.backward()
            if self.when in ('after backward', 'writes'):
                note(copies)
            optimizer.update()
            if self.when == 'in the next iteration':
                note([each for kept in before for each in kept])
            before = [*before, copies][-self.held_iterations:] if self.held_iterations else []
            note([loss, *model.params(), *(each.grad_var for each in model.params())])

    def forward(self, layers, h):
        copies = []
        for layer, functions in layers:
            h = layer(h)
            for function, first, second in functions:
                h = function(h)
                if first < 0.4:
                    copies.append(copy.copy(h))
                    if second < 0.3:
                        copies.append(copy.copy(copies[-1]))
                    elif second < 0.6 and self.holds_variables:
                        copies.append(h)
                    elif second < 0.7:
                        h = h + 0.5 * copies[-1]
                elif first < 0.5:
                    copies.append(copy.deepcopy(h))
        return copies, F.mean(h * h)


def bits_of(program):
    found = []
    program.run(lambda shown: found.extend(each.array.tobytes() for each in shown))
    return found


@pytest.mark.parametrize('seed', range(24))
def test_copies_have_the_bits_of_plain_chainer_and_floors_hold(seed):
    program = Program(seed)
    with chainer.using_config('ooc', None):
        expected = bits_of(program)
    for policy in random.Random(seed).sample(POLICIES, 2):
        with pytest.raises(InfeasibleBudgetError) as refused, ooc(policy, budget=1, min_bytes=1000):
            bits_of(program)
        chainer_ooc.reset()
        for budget in (None, int(MARGIN * refused.value.floor_bytes)):
            with ooc(policy, budget=budget, min_bytes=1000):
                assert bits_of(program) == expected
                stats = chainer_ooc.stats()
                assert stats.phase == 'run'
                assert stats.peak_bytes <= stats.budget_bytes
            chainer_ooc.reset()
