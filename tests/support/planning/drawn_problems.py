"""Random iterations that look like those of networks, for hypothesis: chains with branches and joins.

A call is a convolution (slow, retains its input, needs scratch memory), a normalisation (retains its input), an
activation (retains its output), a dropout (hides a mask), a pooling (its output is smaller) or a join of two branches
(retains nothing). A step reads what its call retained, and allocates the gradients. Some calls cannot be repeated, some
maps cannot be freed.
"""
import dataclasses

from hypothesis import strategies as st

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.cost.costs import measured
from chainer_ooc.problem import Problem, Standing
from chainer_ooc.schedule.schedule import lay_out
from chainer_ooc.trace import Call, FeatureMap, Step, Trace

KINDS = ('convolution', 'normalisation', 'activation', 'dropout', 'pooling', 'branch')
SLOW = {'convolution': 20}
AMPLE = 1 << 50


@dataclasses.dataclass
class Growing:
    """A network while it is drawn: rows of maps and calls, and the outputs that nobody has read yet."""

    maps: list = dataclasses.field(default_factory=list)
    calls: list = dataclasses.field(default_factory=list)
    retained: list = dataclasses.field(default_factory=list)
    tips: list = dataclasses.field(default_factory=list)

    def add_map(self, nbytes, producer, **attributes):
        self.maps.append({'nbytes': nbytes, 'producer': producer, 'last': max(0, len(self.calls)), **attributes})
        return len(self.maps) - 1

    def add_call(self, draw, kind, inputs, out_bytes):
        index = len(self.calls)
        for each in inputs:
            self.maps[each]['last'] = index
        out = self.add_map(out_bytes, index)
        hidden = (self.add_map(max(1, out_bytes // 4), index, hidden=True),) if kind == 'dropout' else ()
        scratch = draw(st.integers(0, 40)) if kind == 'convolution' else 0
        nbytes = out_bytes + sum(self.maps[each]['nbytes'] for each in hidden) + scratch
        seconds = draw(st.integers(1, 10)) * SLOW.get(kind, 1) / 10
        self.calls.append(Call(index, kind, tuple(inputs), (out,), hidden, seconds, nbytes,
                               repeatable=draw(st.sampled_from([True, True, True, False]))))
        keeps = {'convolution': inputs, 'normalisation': inputs, 'activation': (out,), 'pooling': (*inputs, out),
                 'dropout': hidden}
        self.retained.append(tuple(keeps.get(kind, ())))
        return out


@st.composite
def traces(draw, most_calls=24):
    """Random iterations of at most `most_calls` calls and some joins."""
    net = Growing()
    net.tips = [net.add_map(draw(st.integers(1, 40)), None, foreign=draw(st.booleans()))]
    for _ in range(draw(st.integers(2, most_calls))):
        _grow(draw, net)
    while len(net.tips) > 1:
        _join(draw, net)
    net.add_call(draw, 'convolution', (net.tips[0],), 1)
    return _frozen(draw, net)


def _grow(draw, net):
    if len(net.tips) > 1 and draw(st.integers(0, 3)) == 0:
        _join(draw, net)
        return
    kind = draw(st.sampled_from(KINDS[:-1] if len(net.tips) > 2 else KINDS))
    place = draw(st.integers(0, len(net.tips) - 1))
    source = net.tips[place]
    if kind == 'branch':
        net.tips.append(source)
        return
    nbytes = net.maps[source]['nbytes']
    out_bytes = {'convolution': draw(st.integers(1, 60)), 'pooling': max(1, nbytes // 2)}.get(kind, nbytes)
    net.tips[place] = net.add_call(draw, kind, (source,), out_bytes)


def _join(draw, net):
    one, other = net.tips.pop(), net.tips.pop()
    net.tips.append(net.add_call(draw, 'join', (one, other), max(net.maps[each]['nbytes'] for each in (one, other))))


def _frozen(draw, net):
    count, uses, steps = len(net.calls), {}, []
    for number, call in enumerate(reversed(net.calls)):
        read = tuple(sorted(set(net.retained[call.index])))
        for each in read:
            uses.setdefault(each, []).append(count + number)
        gradients = sum(net.maps[each]['nbytes'] for each in {*call.inputs, *call.outputs})
        steps.append(Step(count + number, call.index, read, call.seconds * draw(st.sampled_from([1.0, 2.0, 3.0])),
                          gradients, draw(st.integers(0, 5))))
    maps = tuple(FeatureMap(
        each, row['nbytes'], row['producer'], row.get('hidden', False), each in uses, row.get('foreign', False),
        row['last'], tuple(uses.get(each, ())), (row['nbytes'],), 'uint8',
        written=draw(st.integers(0, 9)) == 0) for each, row in enumerate(net.maps))
    bandwidths = st.sampled_from([1.0, 3.0, 10.0, 30.0, 100.0])
    return Trace('host', tuple(net.calls), tuple(steps), maps, 1.0, draw(bandwidths), draw(bandwidths))


@st.composite
def problems(draw, most_calls=24):
    """Problems with a budget between what swap-all needs and what keep needs."""
    trace = draw(traces(most_calls))
    costs = dataclasses.replace(
        measured(trace), latency_seconds=draw(st.sampled_from([0.0, 0.5])),
        slowdown=draw(st.sampled_from([0.0, 0.0, 0.7])))
    problem = Problem(trace, costs, Standing(draw(st.integers(0, 20)), draw(st.integers(0, 20))), AMPLE, 1)
    least, most = (lay_out(problem, POLICIES[name].decide(problem)).floor_bytes
                   for name in ('swap-all', 'keep'))
    return dataclasses.replace(problem, budget_bytes=draw(st.integers(least, max(least, most))))
