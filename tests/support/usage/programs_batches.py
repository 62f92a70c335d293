"""What programs hold: batches made beforehand, old losses, predictions, features."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from support.usage.usage_programs import Convolutions, Perceptron, images, learn, program, setup, train_on, vectors


@program
def list_of_batches(run):
    batches = [vectors(number) for number in range(6)]
    model = Perceptron()
    optimizer = setup(model)
    for _ in range(2):
        for x, t in batches:
            train_on(run, model, optimizer, x, t)


@program
def long_list_of_batches(run):
    """All batches together are many times what an iteration needs."""
    batches = [vectors(number, batch=256) for number in range(60)]
    model = Perceptron()
    optimizer = setup(model)
    for x, t in batches:
        learn(run, model, optimizer, F.softmax_cross_entropy(model(x), t), note=False)
    run.note_link(model)


@program
def list_of_variables(run):
    """Each batch is a Variable that lives on."""
    batches = [(chainer.Variable(x), t) for x, t in map(vectors, range(4))]
    model = Perceptron()
    optimizer = setup(model)
    for _ in range(2):
        for x, t in batches:
            train_on(run, model, optimizer, x, t)
    for x, _ in batches:
        run.note('gradient of the batch', x.grad)


@program
def list_of_variables_without_gradients(run):
    batches = [(chainer.Variable(x, requires_grad=False), t) for x, t in map(images, range(4))]
    model = Convolutions()
    optimizer = setup(model)
    for _ in range(2):
        for x, t in batches:
            train_on(run, model, optimizer, x, t)


def one_array(count=2560, size=32):
    stream = np.random.RandomState(5)
    return (stream.uniform(-1, 1, (count, size)).astype(np.float32), stream.randint(0, 10, count).astype(np.int32))


@program
def views_of_one_array(run):
    x, t = one_array()
    model = Perceptron()
    optimizer = setup(model)
    for _ in range(2):
        for start in range(0, len(x), 512):
            train_on(run, model, optimizer, x[start:start + 512], t[start:start + 512])
    run.note('data', x)


@program
def shuffled_picks_of_one_array(run):
    """`x[permutation]`: a copy for each batch, which the loop's names hold until the next."""
    x, t = one_array()
    model = Perceptron()
    optimizer = setup(model)
    for _ in range(2):
        order = np.random.permutation(len(x))
        for start in range(0, len(x), 512):
            batch, labels = x[order[start:start + 512]], t[order[start:start + 512]]
            loss = F.softmax_cross_entropy(model(batch), labels)
            learn(run, model, optimizer, loss)


@program
def small_file_mapped_as_the_dataset(run):
    """Batches are views of a file that numpy has mapped, read-only."""
    import tempfile
    with tempfile.TemporaryFile() as file:
        file.write(one_array()[0].tobytes())
        file.flush()
        x = np.memmap(file, np.float32, 'r', shape=(2560, 32))
        t = one_array()[1]
        model = Perceptron()
        optimizer = setup(model)
        for start in range(0, len(x), 512):
            train_on(run, model, optimizer, x[start:start + 512], t[start:start + 512])
        del x


@program
def serial_iterator(run):
    data = chainer.datasets.TupleDataset(*one_array(1200))
    iterator = chainer.iterators.SerialIterator(data, 300)
    model = Perceptron()
    optimizer = setup(model)
    while iterator.epoch < 2:
        x, t = chainer.dataset.concat_examples(iterator.next())
        learn(run, model, optimizer, F.softmax_cross_entropy(model(x), t))


@program
def losses_held(run):
    """`losses.append(loss)`: each holds its whole graph."""
    model = Perceptron()
    optimizer = setup(model)
    losses = []
    for number in range(6):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        learn(run, model, optimizer, loss)
        losses.append(loss)
    run.note('mean', sum(float(loss.array) for loss in losses) / len(losses))
    for loss in losses:
        run.note('loss', loss)


@program
def numbers_of_losses_held(run):
    model = Perceptron()
    optimizer = setup(model)
    losses = []
    for number in range(5):
        x, t = vectors(number)
        y = model(x)
        loss = F.softmax_cross_entropy(y, t)
        learn(run, model, optimizer, loss)
        losses.append(float(loss.array))
    run.note('losses', losses)


@program
def summed_loss_of_an_epoch(run):
    """`total += loss` with Variables: the graphs of an epoch hang together and die at its end."""
    model = Perceptron()
    optimizer = setup(model)
    for epoch in range(2):
        total = 0
        for number in range(3):
            x, t = vectors(3 * epoch + number)
            loss = F.softmax_cross_entropy(model(x), t)
            learn(run, model, optimizer, loss)
            total += loss
        run.note('total', total)


@program
def predictions_held_for_a_plot(run):
    model = Perceptron()
    optimizer = setup(model)
    predictions = []
    for number in range(5):
        x, t = vectors(number)
        y = model(x)
        learn(run, model, optimizer, F.softmax_cross_entropy(y, t))
        predictions.append(y.array)
    for y in predictions:
        run.note('prediction', y)


@program
def hidden_layers_held(run):
    """Large maps of each iteration, as arrays, read after training."""
    model = Perceptron()
    optimizer = setup(model)
    hidden = []
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        hidden.append(h.array)
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t))
    for h in hidden:
        run.note('hidden', h)


@program
def hidden_variables_held(run):
    """The same as Variables, with the graphs behind them."""
    model = Perceptron()
    optimizer = setup(model)
    hidden = []
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        hidden.append(h)
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t))
    for h in hidden:
        run.note('hidden', h)


@program
def features_cached(run):
    """A frozen extractor's outputs, made once, are the batches of all epochs."""
    extractor, head = Convolutions(outputs=64), L.Linear(256, 10)
    with chainer.using_config('train', False), chainer.no_backprop_mode():
        features = [(extractor(images(number, batch=64)[0]), images(number, batch=64)[1]) for number in range(3)]
    model = chainer.Sequential(F.relu, L.Linear(64, 256), F.relu, head)
    optimizer = setup(model)
    for _ in range(2):
        for x, t in features:
            train_on(run, model, optimizer, x, t)


@program
def features_cached_with_their_graph(run):
    """No `no_backprop_mode`: backward goes through the extractor's old graph each time."""
    extractor = Convolutions(outputs=64)
    head = chainer.Sequential(L.Linear(64, 128), F.relu, L.Linear(128, 10))
    x, t = images(0, batch=32)
    features = extractor(x)
    optimizer = setup(head)
    for _ in range(4):
        extractor.cleargrads()
        learn(run, head, optimizer, F.softmax_cross_entropy(head(features), t))
        run.note_link(extractor, 'extractor')


@program
def memory_of_states(run):
    """A replay buffer: arrays of earlier outputs come back as inputs."""
    model = chainer.Sequential(L.Linear(32, 128), F.tanh, L.Linear(128, 32))
    optimizer = setup(model)
    states = [vectors(0)[0]]
    for _number in range(5):
        x = np.concatenate(states[-3:])
        y = model(x)
        run.graph(f'{len(x)} rows')
        learn(run, model, optimizer, F.mean_squared_error(y, np.roll(x, 1, axis=1)))
        states.append(y.array[:512])


@program
def moving_average_of_the_model(run):
    """A second model with a running mean of parameters, evaluated now and then."""
    model, mean = Perceptron(), Perceptron()
    optimizer = setup(model)
    mean.copyparams(model)
    for number in range(4):
        train_on(run, model, optimizer, *vectors(number))
        for target, source in zip(mean.params(), model.params(), strict=True):
            target.array[...] = 0.9 * target.array + 0.1 * source.array
        with chainer.no_backprop_mode():
            run.note('prediction', mean(vectors(50)[0]))
    run.note_link(mean)
