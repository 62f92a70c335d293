"""Training loops: by hand, with a Trainer, with updaters of one's own, and resumed."""
import io
import tempfile

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions

from support.usage.usage_programs import Convolutions, Perceptron, images, learn, program, setup, train, vectors


@program
def by_hand(run):
    model = Perceptron()
    train(run, model, setup(model), 5)


@program
def by_hand_with_images(run):
    model = Convolutions()
    train(run, model, setup(model), 4, images)


@program
def loss_function_to_the_optimizer(run):
    """`optimizer.update(lossfun, ...)` clears gradients and runs backward itself."""
    model = L.Classifier(Perceptron())
    optimizer = setup(model, chainer.optimizers.Adam())
    for number in range(4):
        optimizer.update(model, *vectors(number))
        run.note('loss', model.loss)
        run.note('accuracy', model.accuracy)
        run.note_link(model)
        run.ended()


@program
def everything_in_one_scope(run):
    """No function: names of the last iteration still hold its graph while the next is built."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h1 = F.relu(model.l1(x))
        h2 = F.relu(model.l2(h1))
        y = model.l3(h2)
        loss = F.softmax_cross_entropy(y, t)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        run.note('loss', loss)
        run.note('accuracy', F.accuracy(y, t))
        run.ended()
    run.note_link(model)
    run.note('last hidden layer', h1)
    run.note('last output', y)


@program
def loss_deleted_before_the_update(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        model.cleargrads()
        loss.backward()
        loss.unchain_backward()
        run.note('loss', loss)
        del loss
        optimizer.update()
        run.note_link(model)
        run.ended()


def dataset(count=1536, size=32):
    stream = np.random.RandomState(7)
    return chainer.datasets.TupleDataset(
        stream.uniform(-1, 1, (count, size)).astype(np.float32), stream.randint(0, 10, count).astype(np.int32))


class Noted(training.Extension):
    """Notes loss and parameters after each iteration."""

    trigger = 1, 'iteration'
    priority = training.PRIORITY_READER

    def __init__(self, run):
        self.run = run

    def __call__(self, trainer):
        observed = trainer.observation
        for key in sorted(observed):
            value = observed[key]
            self.run.note(key, value)
        self.run.note_link(trainer.updater.get_optimizer('main').target)
        self.run.ended()


def trainer_of(run, folder, epochs=2, *, iterator=None, updater=None, snapshots=False):
    model = L.Classifier(Perceptron())
    optimizer = setup(model, chainer.optimizers.Adam())
    iterator = iterator or chainer.iterators.SerialIterator(dataset(), 512)
    updater = (updater or training.StandardUpdater)(iterator, optimizer)
    trainer = training.Trainer(updater, (epochs, 'epoch'), out=folder)
    test = chainer.iterators.SerialIterator(dataset(600), 512, repeat=False, shuffle=False)
    trainer.extend(extensions.Evaluator(test, model))
    trainer.extend(extensions.LogReport(filename='log'))
    trainer.extend(extensions.PrintReport(['epoch', 'main/loss', 'validation/main/loss'], out=io.StringIO()))
    trainer.extend(Noted(run))
    if snapshots:
        trainer.extend(extensions.snapshot(filename='snapshot'), trigger=(2, 'iteration'))
        trainer.extend(extensions.snapshot_object(model, 'model'), trigger=(1, 'epoch'))
    return trainer


@program
def trainer(run):
    with tempfile.TemporaryDirectory() as folder:
        trainer_of(run, folder).run()


@program
def trainer_with_a_smaller_last_batch(run):
    with tempfile.TemporaryDirectory() as folder:
        iterator = chainer.iterators.SerialIterator(dataset(1200), 512, repeat=True)
        trainer_of(run, folder, iterator=iterator).run()


@program
def trainer_with_snapshots_and_resume(run):
    with tempfile.TemporaryDirectory() as folder:
        trainer_of(run, folder, 1, snapshots=True).run()
        resumed = trainer_of(run, folder, 2)
        chainer.serializers.load_npz(f'{folder}/snapshot', resumed, strict=False)
        resumed.run()


@program
def trainer_with_a_multithread_iterator(run):
    with tempfile.TemporaryDirectory() as folder:
        iterator = chainer.iterators.MultithreadIterator(dataset(), 512, n_threads=2, shuffle=False)
        try:
            trainer_of(run, folder, iterator=iterator).run()
        finally:
            iterator.finalize()


@program
def trainer_with_a_multiprocess_iterator(run):
    with tempfile.TemporaryDirectory() as folder:
        iterator = chainer.iterators.MultiprocessIterator(dataset(), 512, n_processes=1, n_prefetch=1, shuffle=False)
        try:
            trainer_of(run, folder, iterator=iterator).run()
        finally:
            iterator.finalize()


class TwoBatchesAtOnce(training.StandardUpdater):
    """An updater of one's own that puts the converted halves of a batch together."""

    def update_core(self):
        optimizer = self.get_optimizer('main')
        batch = self.converter(self.get_iterator('main').next())
        halves = [tuple(column[start::2] for column in batch) for start in (0, 1)]
        loss = sum(optimizer.target(*half) for half in halves) / 2
        optimizer.target.cleargrads()
        loss.backward()
        optimizer.update()


@program
def updater_of_ones_own(run):
    with tempfile.TemporaryDirectory() as folder:
        trainer_of(run, folder, updater=TwoBatchesAtOnce).run()


@program
def evaluation_between_iterations(run):
    model = Convolutions()
    optimizer = setup(model)
    for number in range(4):
        train(run, model, optimizer, 1, images, first=number)
        x, t = images(50 + number, batch=24)
        with chainer.using_config('train', False), chainer.no_backprop_mode():
            y = model(x)
            run.note('validation', F.softmax_cross_entropy(y, t))
            run.note('prediction', y)


@program
def evaluation_that_keeps_its_graph(run):
    """No `no_backprop_mode`, and in train mode: common, and the statistics change too."""
    model = Convolutions()
    optimizer = setup(model)
    for number in range(4):
        train(run, model, optimizer, 1, images, first=number)
        run.graph('evaluation')
        x, t = images(50 + number)
        run.note('validation', F.softmax_cross_entropy(model(x), t))
        run.graph('training')


@program
def early_stop_and_learning_rate_drop(run):
    """The program reads the loss after each iteration and decides."""
    model = Perceptron()
    optimizer = setup(model)
    best = np.inf
    for number in range(6):
        x, t = vectors(number % 2)
        loss = F.softmax_cross_entropy(model(x), t)
        learn(run, model, optimizer, loss)
        if float(loss.array) < best:
            best = float(loss.array)
        else:
            optimizer.lr *= 0.5
        if best < 0.1:
            break
