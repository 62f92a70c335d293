"""Iterations that end early: what follows them is as in plain Chainer."""
import _thread
import contextlib
import signal
import threading
import time

import chainer
import chainer.functions as F
import numpy as np

from support.interrupting import interrupted_at
from support.usage.usage_programs import (
    Convolutions,
    Perceptron,
    images,
    learn,
    program,
    setup,
    train,
    train_on,
    vectors,
)


class StopError(Exception):
    """The program's own."""


class RaisesAt(chainer.FunctionHook):
    """Raises when so many calls (or steps of backward) have begun or ended."""

    name = 'RaisesAt'

    def __init__(self, when, number, error=KeyboardInterrupt):
        self._when, self._number, self._error = when, number, error

    def _count(self, when):
        if when == self._when:
            self._number -= 1
            if self._number < 0:
                raise self._error

    def forward_preprocess(self, function, in_data):
        self._count('before a call')

    def forward_postprocess(self, function, in_data):
        self._count('after a call')

    def backward_preprocess(self, function, in_data, out_grad):
        self._count('before a step')

    def backward_postprocess(self, function, in_data, out_grad):
        self._count('after a step')


MOMENTS = ('before a call', 'after a call', 'before a step', 'after a step')


def loss_of(model, number, batch=vectors):
    x, t = batch(number)
    return F.softmax_cross_entropy(model(x), t)


@program
def interrupted_then_the_next_batch(run):
    model = Perceptron()
    optimizer = setup(model)
    drawn = np.random.RandomState(3)
    train_on(run, model, optimizer, *vectors(0))
    for number in range(1, 9):
        with contextlib.suppress(KeyboardInterrupt), RaisesAt(MOMENTS[number % 4], drawn.randint(6)):
            learn(run, model, optimizer, loss_of(model, number))
    train_on(run, model, optimizer, *vectors(20))


@program
def interrupted_then_the_same_forward(run):
    model = Perceptron()
    optimizer = setup(model)
    train(run, model, optimizer, 2, first=80)
    drawn = np.random.RandomState(4)
    for number in range(6):
        with contextlib.suppress(KeyboardInterrupt), RaisesAt(MOMENTS[number % 4], drawn.randint(6)):
            model.cleargrads()
            loss_of(model, number).backward()
        learn(run, model, optimizer, loss_of(model, number))


@program
def interrupted_in_backward_then_backward_again(run):
    model = Perceptron()
    optimizer = setup(model)
    train(run, model, optimizer, 2, first=80)
    for number in range(6):
        loss = loss_of(model, number)
        model.cleargrads()
        with contextlib.suppress(KeyboardInterrupt), RaisesAt('before a step', number):
            loss.backward()
        loss.cleargrad()
        learn(run, model, optimizer, loss)


@program
def interrupted_after_a_step_then_backward_again(run):
    model = Convolutions()
    optimizer = setup(model)
    train(run, model, optimizer, 2, images, first=80)
    for number in range(6):
        loss = loss_of(model, number, images)
        model.cleargrads()
        with contextlib.suppress(KeyboardInterrupt), RaisesAt('after a step', 2 * number):
            loss.backward()
        loss.cleargrad()
        learn(run, model, optimizer, loss)


@program
def interrupted_graph_kept_beside_the_next(run):
    """The graph that was interrupted is run again after another iteration."""
    model = Perceptron()
    optimizer = setup(model)
    train(run, model, optimizer, 2, first=80)
    for number in range(3):
        first = loss_of(model, number)
        model.cleargrads()
        with contextlib.suppress(KeyboardInterrupt), RaisesAt('after a step', 2 + number):
            first.backward()
        first.cleargrad()
        other = loss_of(model, 10 + number)
        model.cleargrads()
        other.backward()
        run.note_link(model)
        learn(run, model, optimizer, first)


class InterruptedScale(chainer.FunctionNode):
    """A user's function that is interrupted in the middle of its own work, once."""

    ooc_recompute = True

    def __init__(self, factor, fails_in=None):
        self.factor, self.fails_in = factor, fails_in

    def forward(self, inputs):
        self.retain_inputs((0,))
        result = inputs[0] * self.factor
        if self.fails_in == 'forward':
            raise KeyboardInterrupt
        return result,

    def backward(self, indexes, gradients):
        x, = self.get_retained_inputs()
        result = gradients[0] * self.factor + x * 0
        if self.fails_in == 'backward':
            self.fails_in = None
            raise KeyboardInterrupt
        return result,


@program
def interrupted_inside_a_function_of_ones_own(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(6):
        x, t = vectors(number)
        fails_in = (None, 'backward', 'forward')[number % 3]
        try:
            h = F.relu(model.l1(x))
            h, = InterruptedScale(np.float32(0.5), fails_in).apply((h,))
            loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
            model.cleargrads()
            loss.backward()
        except KeyboardInterrupt:
            if fails_in == 'forward':
                continue
            loss.cleargrad()
        learn(run, model, optimizer, loss)


@program
def nan_check_raises(run):
    """chainer.config.debug makes functions and backward check for NaN and raise RuntimeError."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(6):
        x, t = vectors(number)
        if number % 3 == 1:
            x[3, 3] = np.nan
        try:
            with chainer.using_config('debug', True):
                learn(run, model, optimizer, F.softmax_cross_entropy(model(x), t))
        except RuntimeError as error:
            if 'NaN' not in str(error):
                raise


@program
def optimizer_hook_raises(run):
    def check(optimizer):
        if optimizer.t % 3 == 2 and not failed[0]:
            failed[0] = True
            raise StopError
        failed[0] = False
    failed = [False]
    model = Perceptron()
    optimizer = setup(model, None, check)
    for number in range(6):
        loss = loss_of(model, number)
        try:
            learn(run, model, optimizer, loss)
        except StopError:
            run.note('stopped', loss)


@program
def forward_abandoned(run):
    """`break` and `continue` between forward and backward, with and without the graph kept."""
    model = Perceptron()
    optimizer = setup(model)
    kept = []
    for number in range(8):
        loss = loss_of(model, number)
        if number % 2:
            if number == 3:
                kept.append(loss)
            continue
        learn(run, model, optimizer, loss)
    learn(run, model, optimizer, kept[0])


@program
def type_check_fails(run):
    """A layer gets a wrong shape; the program catches the error and goes on."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(5):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        try:
            model.l3(h)
        except chainer.utils.type_check.InvalidType:
            run.note('refused', h)
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t))


def interrupted_at_drawn_lines(run, seed, again):
    """Iterations that are each interrupted at a line, and done again in full by `again(model, number, loss)`.

    None holds its batch in backward: where an interrupt has ended the recording of one that does, that would be new.
    """
    model = Perceptron()
    optimizer = setup(model)
    drawn = np.random.RandomState(seed)
    learn(run, model, optimizer, loss_of(model, 0))
    for number in range(1, 9):
        lines, losses = int(np.exp(drawn.uniform(np.log(50), np.log(4000)))), [None]

        def begin(number=number, losses=losses):
            model.cleargrads()
            losses[0] = loss_of(model, number)
            losses[0].backward()

        interrupted_at(lines + 1, begin, 'line', lambda code: 'chainer' in code.co_filename)
        learn(run, model, optimizer, again(model, number, losses[0]))
    learn(run, model, optimizer, loss_of(model, 20))


def same_forward(model, number, loss):
    return loss_of(model, number)


def same_graph(model, number, loss):
    if loss is None:
        return loss_of(model, number)
    loss.cleargrad()
    return loss


def another_forward(model, number, loss):
    return loss_of(model, 30 + number)


@program
def interrupted_at_any_line_then_the_same_forward(run):
    interrupted_at_drawn_lines(run, 1, same_forward)


@program
def interrupted_at_any_line_then_the_same_graph(run):
    interrupted_at_drawn_lines(run, 2, same_graph)


@program
def interrupted_at_any_line_then_another_batch(run):
    interrupted_at_drawn_lines(run, 3, another_forward)


def interrupted_by(run, send):
    """Iterations into which a thread sends an interrupt at drawn times; each is done again in full."""
    model = Convolutions()
    model.n1.disable_update()
    optimizer = setup(model)
    drawn = np.random.RandomState(9)
    train_on(run, model, optimizer, *images(0))
    statistics = [(link, link.avg_mean, link.avg_var) for link in (model.n1, model.n2)]
    for number in range(1, 6):
        before = [(link, mean.copy(), var.copy()) for link, mean, var in statistics]
        timer = threading.Timer(drawn.uniform(0, 0.01), send)
        try:
            timer.start()
            try:
                model.cleargrads()
                for count in range(3):
                    loss_of(model, 40 + count, images).backward()
            finally:
                timer.cancel()
                timer.join()
                time.sleep(0.001)  # whatever was sent arrives in here
        except KeyboardInterrupt:
            timer.join()
        for link, mean, var in before:
            link.avg_mean[...], link.avg_var[...] = mean, var
        learn(run, model, optimizer, loss_of(model, number, images))


@program
def interrupted_by_a_timer_thread(run):
    interrupted_by(run, _thread.interrupt_main)


@program
def interrupted_by_a_signal(run):
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        interrupted_by(run, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)


@program
def status_report_on_a_signal(run):
    """A handler that reads the loss and the maps of the iteration in hand, every other millisecond."""
    model = Convolutions()
    optimizer = setup(model)
    shown, reports = [], []

    def report(*signal_and_frame):
        for each in shown:
            with contextlib.suppress(RuntimeError):  # it cannot be had at this very moment
                reports.append(float(each.array.sum()))

    before = signal.signal(signal.SIGPROF, report)
    signal.setitimer(signal.ITIMER_PROF, 0.002, 0.002)
    try:
        for number in range(6):
            loss = loss_of(model, number, images)
            found = [loss, *[each.get_variable_or_none() for each in loss.creator_node.inputs]]
            shown[:] = [each for each in found if each is not None]
            del found
            learn(run, model, optimizer, loss)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
