"""Graphs that span threads, and trainings that run at once."""
import concurrent.futures
import queue
import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from support.usage.usage_programs import Convolutions, Perceptron, images, learn, program, setup, train, vectors


@program
def forward_in_a_worker(run):
    """Backward in the main thread, which has an iteration of its own in hand."""
    model, other = Perceptron(), Perceptron()
    optimizer, other_optimizer = setup(model), setup(other)
    train(run, model, optimizer, 2, first=80)
    run.graph('in two threads')
    for number in range(4):
        x, t = vectors(number)
        own = F.softmax_cross_entropy(other(vectors(20 + number)[0]), t)
        loss = run.in_thread(lambda x=x, t=t: F.softmax_cross_entropy(model(x), t))
        learn(run, model, optimizer, loss)
        learn(run, other, other_optimizer, own)


@program
def forward_in_a_worker_that_lives_on(run):
    """One worker makes graph after graph; the main thread takes them from a queue."""
    model, other = Perceptron(), Perceptron()
    optimizer, other_optimizer = setup(model), setup(other)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for number in range(4):
            x, t = vectors(number)
            own = other.l2(F.relu(other.l1(vectors(20 + number)[0])))
            work = run.labelled(lambda x=x, t=t: F.softmax_cross_entropy(model(x), t))
            loss = pool.submit(work).result()
            own = F.softmax_cross_entropy(other.l3(F.relu(own)), t)
            learn(run, other, other_optimizer, own)
            learn(run, model, optimizer, loss)


@program
def first_half_in_a_worker(run):
    model = Perceptron()
    optimizer = setup(model)
    train(run, model, optimizer, 2, first=80)
    run.graph('in two threads')
    for number in range(4):
        x, t = vectors(number)
        h = run.in_thread(lambda x=x: F.relu(model.l2(F.relu(model.l1(x)))))
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(F.sigmoid(h)), t))


@program
def second_half_in_a_worker(run):
    model = Perceptron()
    optimizer = setup(model)
    train(run, model, optimizer, 2, first=80)
    run.graph('in two threads')
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        loss = run.in_thread(lambda h=h, t=t: F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t))
        learn(run, model, optimizer, loss)


@program
def backward_in_a_worker(run):
    model = Perceptron()
    optimizer = setup(model)
    train(run, model, optimizer, 2, first=80)
    for number in range(4):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        run.in_thread(lambda loss=loss: learn(run, model, optimizer, loss))


@program
def backward_in_a_worker_beside_an_own_graph(run):
    model, other = Convolutions(), Convolutions()
    optimizer, other_optimizer = setup(model), setup(other)

    def work(loss, number):
        x, t = images(30 + number)
        own = F.softmax_cross_entropy(other(x), t)
        learn(run, model, optimizer, loss)
        learn(run, other, other_optimizer, own)
    for number in range(4):
        x, t = images(number)
        run.in_thread(work, F.softmax_cross_entropy(model(x), t), number)


@program
def whole_training_in_a_worker(run):
    model = Perceptron()
    run.in_thread(lambda: train(run, model, setup(model), 4))


@program
def each_iteration_in_a_new_thread(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        run.in_thread(lambda number=number: train(run, model, optimizer, 1, first=number))


@program
def two_halves_in_two_workers(run):
    """Two towers at once, each in a thread; their sum is the main thread's."""
    left, right, top = (Perceptron(outputs=16), Perceptron(outputs=16), L.Linear(16, 10))
    model = chainer.ChainList(left, right, top)
    optimizer = setup(model)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number in range(4):
            x, t = vectors(number)
            towers = [pool.submit(run.labelled(tower), x) for tower in (left, right)]
            y = towers[0].result() + towers[1].result()
            learn(run, model, optimizer, F.softmax_cross_entropy(top(y), t))


def together(run, *workers):
    """Runs functions of a `Run` at once, joins what they noted in order, and raises the first error."""
    parts = [run.part() for _ in workers]
    with concurrent.futures.ThreadPoolExecutor(len(workers)) as pool:
        futures = [pool.submit(part.labelled(worker), part) for worker, part in zip(workers, parts, strict=True)]
        errors = [future.exception() for future in futures]
    for error in sorted(filter(None, errors), key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # a broken barrier is what the first error did to the others
    for number, part in enumerate(parts):
        run.join(part, f'thread {number}')


@program
def two_trainings_at_once(run):
    models = [Perceptron(), Perceptron()]

    def worker(number):
        def work(part):
            part.graph(f'thread {number}')
            train(part, models[number], setup(models[number]), 5, first=10 * number)
        return work
    together(run, worker(0), worker(1))


@program
def two_trainings_of_different_length_at_once(run):
    """The first to end must not take anything from the other."""
    models = [Perceptron(), Convolutions()]
    ended = threading.Event()

    def short(part):
        part.graph('short')
        try:
            train(part, models[0], setup(models[0]), 3)
        finally:
            ended.set()

    def long(part):
        part.graph('long')
        optimizer = setup(models[1])
        train(part, models[1], optimizer, 2, images)
        ended.wait(20)
        train(part, models[1], optimizer, 4, images, first=2)
    together(run, short, long)


@program
def three_trainings_in_lock_step(run):
    """All have a graph in hand when the first runs backward."""
    models = [Perceptron() for _ in range(3)]
    step = threading.Barrier(3)

    def worker(number):
        def work(part):
            part.graph(f'thread {number}')
            optimizer = setup(models[number])
            try:
                for count in range(4):
                    x, t = vectors(10 * number + count)
                    loss = F.softmax_cross_entropy(models[number](x), t)
                    step.wait(20)
                    learn(part, models[number], optimizer, loss)
            except BaseException:
                step.abort()
                raise
        return work
    together(run, *(worker(number) for number in range(3)))


@program
def evaluation_while_another_trains(run):
    model, served = Perceptron(), Perceptron()
    served.copyparams(model)

    def evaluate(part):
        with chainer.using_config('train', False), chainer.no_backprop_mode():
            for number in range(12):
                part.note('prediction', served(vectors(100 + number)[0]))

    def work(part):
        train(part, model, setup(model), 5)
    together(run, work, evaluate)


@program
def evaluation_in_a_worker_between_iterations(run):
    model = Convolutions()
    optimizer = setup(model)

    def evaluate(number):
        x, t = images(70 + number)
        with chainer.using_config('train', False), chainer.using_config('enable_backprop', False):
            return F.softmax_cross_entropy(model(x), t).array
    for number in range(3):
        x, t = images(number)
        loss = F.softmax_cross_entropy(model(x), t)
        run.note('validation', run.in_thread(evaluate, number))
        learn(run, model, optimizer, loss)


@program
def batches_from_a_loader_thread(run):
    """A thread fills a queue of two batches while the main thread trains."""
    model = Perceptron()
    optimizer = setup(model)
    ready = queue.Queue(2)

    def load():
        for number in range(5):
            x, t = vectors(number)
            ready.put((np.ascontiguousarray(x * np.float32(0.5)), t))
    loader = threading.Thread(target=load)
    loader.start()
    try:
        for _ in range(5):
            x, t = ready.get(timeout=20)
            learn(run, model, optimizer, F.softmax_cross_entropy(model(x), t))
    finally:
        while loader.is_alive():
            try:
                ready.get(timeout=0.05)
            except queue.Empty:
                continue
        loader.join()


@program
def maps_read_by_a_logging_thread(run):
    """Another thread reads a map's statistics while the main thread runs backward."""
    model = Perceptron()
    optimizer = setup(model)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for number in range(4):
            x, t = vectors(number)
            h = model.l1(x)
            loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(F.relu(h)))), t)
            mean = pool.submit(lambda h=h: [h.array.mean() for _ in range(20)])
            learn(run, model, optimizer, loss)
            for value in mean.result():
                run.note('mean', value)


@program
def graph_made_and_left_in_a_dead_thread(run):
    """The thread that made the graph is gone when its maps are read and its backward runs."""
    model = Perceptron()
    optimizer = setup(model)
    losses = [run.in_thread(lambda number=number: F.softmax_cross_entropy(
        model(vectors(number)[0]), vectors(number)[1])) for number in range(3)]
    for loss in losses:
        model.cleargrads()
        loss.backward()
        run.note('loss', loss)
        run.note_link(model)
        run.ended()
    optimizer.update()
    train(run, model, optimizer, 2)
