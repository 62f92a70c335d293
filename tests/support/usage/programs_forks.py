"""Processes that fork while maps are away: the child works on its own, and the parent goes on unharmed."""
import os
import pickle
import signal
import sys
import traceback
import warnings

import chainer
import chainer.functions as F

import chainer_ooc
from support.usage.usage_programs import Perceptron, learn, program, setup, train, train_on, vectors

CHILD_SECONDS = 25


#: What the children of plain Chainer found, by program and iteration.
EXPECTED = {}


class ChildError(Exception):
    """What the child raised, as text."""


def in_child(run, function, *args):
    """Runs a function of a `Run` and more in a forked child; its bits are noted here, its errors raised here."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)  # Python 3.12 warns of threads, which a child lacks
        child = os.fork()
    if child == 0:
        os._exit(_child(run, writer, function, args))
    os.close(writer)
    with os.fdopen(reader, 'rb') as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if not answer:
        raise ChildError(f'the child ended with status {status} and no answer')
    part, error, text = pickle.loads(answer)
    if error is not None:
        raise error from ChildError(text)
    if text:
        raise ChildError(text)
    run.bits += [(f'child: {label}', value) for label, value in part]
    return status


def _child(run, writer, function, args):
    """What the child does; never returns to what the parent was doing."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(CHILD_SECONDS)
    part, error, text = run.part(), None, ''
    try:
        run.labelled(function)(part, *args)
    except BaseException as raised:
        text = traceback.format_exc()
        if isinstance(raised, chainer_ooc.errors.OocError):
            error = raised
    with os.fdopen(writer, 'wb') as pipe:
        pipe.write(pickle.dumps((part.bits, error, text)))
    return 0


def in_child_unless_away(run, function, *args):
    """The same; what is away when the process is forked is the parent's, and the child is told so (the guide: Forks).

    The child's bits are checked, and not noted: which maps are away is the manager's matter.
    """
    part = run.part()
    try:
        in_child(part, function, *args)
    except chainer_ooc.errors.SpillError as error:
        if 'was forked' not in str(error):
            raise
        return
    found = [value for _, value in part.bits]
    assert EXPECTED.setdefault((function.__qualname__, args[-1]), found) == found


def between_forward_and_backward(run, function, fork=in_child):
    """Trains, and in each iteration forks between forward and backward."""
    model = Perceptron()
    optimizer = setup(model)
    train(run, model, optimizer, 2)
    for number in range(2, 5):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
        fork(run, function, model, h, loss, *([number] if fork is in_child_unless_away else []))
        learn(run, model, optimizer, loss)
    train(run, model, optimizer, 1, first=5)


@program
def child_does_nothing(run):
    between_forward_and_backward(run, lambda part, model, h, loss: part.note('alive', 1))


@program
def child_evaluates(run):
    def evaluate(part, model, h, loss):
        with chainer.using_config('train', False), chainer.no_backprop_mode():
            part.note('prediction', model(vectors(60)[0]))
    between_forward_and_backward(run, evaluate)


@program
def child_reads_the_parents_maps(run):
    def read(part, model, h, loss, number):
        part.note('hidden', h)
        part.note('loss', loss)
    between_forward_and_backward(run, read, in_child_unless_away)


@program
def child_runs_backward_on_the_parents_graph(run):
    def backward(part, model, h, loss, number):
        model.cleargrads()
        loss.backward()
        part.note_link(model)
    between_forward_and_backward(run, backward, in_child_unless_away)


@program
def child_writes_to_the_parents_maps(run):
    """What the child writes is its own."""
    def write(part, model, h, loss, number):
        h.array[...] = 0
        model.cleargrads()
        loss.backward()
        part.note_link(model)
    between_forward_and_backward(run, write, in_child_unless_away)


@program
def child_trains_a_model_of_its_own(run):
    def work(part, model, h, loss):
        own = Perceptron()
        train(part, own, setup(own), 3)
    between_forward_and_backward(run, work)


@program
def child_trains_the_parents_model_further(run):
    def work(part, model, h, loss):
        train(part, model, setup(model), 3)
    between_forward_and_backward(run, work)


@program
def child_resets_and_trains(run):
    def work(part, model, h, loss):
        chainer_ooc.reset()
        own = Perceptron()
        train(part, own, setup(own), 3)
        chainer_ooc.reset()
    between_forward_and_backward(run, work)


@program
def child_switches_out_of_core_off(run):
    def work(part, model, h, loss):
        with chainer.using_config('ooc', None):
            train(part, model, setup(model), 2)
    between_forward_and_backward(run, work)


@program
def child_forks_once_more(run):
    def work(part, model, h, loss):
        in_child(part, lambda inner: inner.note('hidden', h))
        own = Perceptron()
        train(part, own, setup(own), 2)
    between_forward_and_backward(run, work)


@program
def child_between_iterations(run):
    """Hyperparameters tried in children, from the same parameters."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(3):
        train_on(run, model, optimizer, *vectors(number))

        def tries(part, rate):
            run.graph("the child's, with an optimizer that has no state")
            train(part, model, setup(model, chainer.optimizers.SGD(rate)), 2, first=10)
        for rate in (0.1, 0.01):
            in_child(run, tries, rate)


@program
def child_forked_in_backward(run):
    """From a function hook, while a step of backward has its maps in hand."""
    model = Perceptron()
    optimizer = setup(model)

    class Forks(chainer.FunctionHook):
        name = 'Forks'

        def backward_preprocess(self, function, in_data, out_grad):
            if function.label == 'ReLU':
                in_child(run, lambda part: part.note('gradient', out_grad[0]))
    for number in range(4):
        if number < 2:
            train_on(run, model, optimizer, *vectors(number))
        else:
            with Forks():
                train_on(run, model, optimizer, *vectors(number))


@program
def child_outlives_the_parents_iteration(run):
    """The child is told to read its map only when the parent's iteration has ended and its space has been reused."""
    model = Perceptron()
    optimizer = setup(model)
    train(run, model, optimizer, 2)
    for number in range(2, 4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
        go, told = os.pipe()
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)
            child = os.fork()
        if child == 0:
            os.close(told)

            def read(part, h=h, go=go):
                os.read(go, 1)
                part.note('hidden', h)
            os._exit(_child(run, writer, read, ()))
        os.close(writer)
        os.close(go)
        try:
            learn(run, model, optimizer, loss)
            del h, loss
            train(run, model, optimizer, 1, first=30 + number)
        finally:
            os.close(told)
            with os.fdopen(reader, 'rb') as pipe:
                answer = pipe.read()
            os.waitpid(child, 0)
        if not answer:
            raise ChildError('the child ended without an answer')
        bits, error, text = pickle.loads(answer)
        if error is not None:
            raise error
        if text:
            raise ChildError(text)
        run.bits += [(f'child: {label}', value) for label, value in bits]
