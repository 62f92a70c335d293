"""Programs that write to arrays which the graph still needs: what plain Chainer makes of it is what counts."""
import chainer
import chainer.functions as F
import numpy as np

from support.usage.usage_programs import Convolutions, Perceptron, images, learn, program, setup, train_on, vectors


def hidden_and_loss(model, x, t, second=F.relu):
    """The two hidden layers as the program shows them, and the loss."""
    h1 = F.relu(model.l1(x))
    h2 = second(model.l2(h1))
    return h1, h2, F.softmax_cross_entropy(model.l3(h2), t)


@program
def activation_halved_after_forward(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        h1, h2, loss = hidden_and_loss(model, *vectors(number))
        h1.array *= 0.5
        run.note('written', h1)
        learn(run, model, optimizer, loss)
        del h1, h2


@program
def all_shown_maps_written_after_forward(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        a1 = model.l1(x)
        h1 = F.tanh(a1)
        a2 = model.l2(h1)
        h2 = F.sigmoid(a2)
        loss = F.softmax_cross_entropy(model.l3(h2), t)
        for factor, map_ in enumerate((a1, h1, a2, h2), start=2):
            map_.array[...] = map_.array / np.float32(factor)
        learn(run, model, optimizer, loss)


@program
def raw_array_written_after_forward(run):
    """The program has kept the array, not the Variable."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        raw = h.array
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
        del h
        raw += np.float32(0.25)
        learn(run, model, optimizer, loss)


@program
def view_of_a_map_written_after_forward(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        corner = h.array[::2, :10].T
        loss = F.softmax_cross_entropy(model.l3(F.sigmoid(model.l2(h))), t)
        del h
        corner[...] = 0.125
        del corner
        learn(run, model, optimizer, loss)


@program
def reshaped_map_written_after_forward(run):
    """Two Variables of one block of memory: one is written to, the other's function reads it in backward."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.tanh(model.l1(x))
        flat = F.reshape(h, (-1,))
        loss = F.softmax_cross_entropy(model.l3(F.tanh(model.l2(h))), t) + 0.001 * F.sum(flat * flat)
        flat.array[::3] = 0.5
        learn(run, model, optimizer, loss)
        del h, flat


@program
def written_between_two_layers(run):
    """After a layer has used the map, and before the next does."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        first = F.sum(h * h) * 1e-4
        h.array[:] *= 0.5
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t) + first
        learn(run, model, optimizer, loss)


@program
def written_before_its_only_use(run):
    """Noise in place, then on: the written values are what the next layer reads."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.sigmoid(model.l1(x))
        h.array += np.random.normal(0, 0.1, h.shape).astype(np.float32)
        h = F.relu(model.l2(h))
        np.clip(h.array, 0, 0.5, out=h.array)
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(h), t))


@program
def written_after_forward_by_an_assignment(run):
    """`h.array = ...` puts another array into the Variable."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        h1, h2, loss = hidden_and_loss(model, *vectors(number), F.tanh)
        h1.array = h1.array * np.float32(0.5)
        run.note('assigned', h1)
        learn(run, model, optimizer, loss)
        del h1, h2


@program
def same_buffer_for_each_batch(run):
    """`np.copyto` into one array before each forward."""
    model = Perceptron()
    optimizer = setup(model)
    x, t = (np.empty_like(column) for column in vectors(0))
    for number in range(5):
        np.copyto(x, vectors(number)[0])
        np.copyto(t, vectors(number)[1])
        train_on(run, model, optimizer, x, t)


@program
def same_buffer_filled_between_forward_and_backward(run):
    """The next batch is loaded into the buffer too early: plain Chainer's gradients use it."""
    model = Perceptron()
    optimizer = setup(model)
    x, t = vectors(0)
    for number in range(1, 5):
        loss = F.softmax_cross_entropy(model(x), t)
        np.copyto(x, vectors(number)[0])
        np.copyto(t, vectors(number)[1])
        learn(run, model, optimizer, loss)


@program
def same_variable_for_each_batch(run):
    model = Convolutions()
    optimizer = setup(model)
    x, t = images(0)
    x = chainer.Variable(x)
    for number in range(4):
        x.array[...] = images(number)[0]
        learn(run, model, optimizer, F.softmax_cross_entropy(model(x), t))
        x.cleargrad()


@program
def adversarial_batch(run):
    """Adds the sign of the batch's gradient to the batch, in place, and trains on that."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(3):
        array, t = vectors(number)
        x = chainer.Variable(array)
        model.cleargrads()
        F.softmax_cross_entropy(model(x), t).backward()
        run.note('gradient of the batch', x.grad)
        x.array += np.float32(0.1) * np.sign(x.grad)
        learn(run, model, optimizer, F.softmax_cross_entropy(model(x.array), t))


@program
def image_optimised_by_hand(run):
    """Style transfer: the image is the parameter, and is written to by hand after each backward."""
    model = Convolutions()
    model.disable_update()
    x = chainer.Parameter(images(0)[0])
    target = images(1)[0]
    for _ in range(4):
        x.cleargrad()
        model.cleargrads()
        h = F.relu(model.c1(x))
        with chainer.no_backprop_mode():
            wanted = F.relu(model.c1(target))
        loss = F.mean_squared_error(h, wanted) + 1e-3 * F.sum(F.absolute(x[:, :, 1:] - x[:, :, :-1]))
        loss.backward()
        x.array -= 0.5 * x.grad
        np.clip(x.array, -1, 1, out=x.array)
        run.note('loss', loss)
        run.note('image', x)
        run.ended()


class ZeroSmall(chainer.LinkHook):
    """Zeroes small values of what a link gave, and of what it was given."""

    name = 'ZeroSmall'

    def forward_postprocess(self, args):
        if isinstance(args.link, chainer.links.Linear):
            for array in (args.out.array, chainer.as_variable(args.args[0]).array):
                array[abs(array) < 0.05] = 0


@program
def written_by_a_link_hook(run):
    model = Perceptron()
    optimizer = setup(model)
    with ZeroSmall():
        for number in range(4):
            train_on(run, model, optimizer, *vectors(number))


class ScaleInputs(chainer.FunctionHook):
    """Writes to the inputs of one function before its forward runs."""

    name = 'ScaleInputs'

    def forward_preprocess(self, function, in_data):
        if function.label == 'Sigmoid':
            in_data[0][...] *= np.float32(0.5)


@program
def inputs_written_by_a_function_hook(run):
    model = Perceptron()
    optimizer = setup(model)
    with ScaleInputs():
        for number in range(4):
            h1, h2, loss = hidden_and_loss(model, *vectors(number), F.sigmoid)
            learn(run, model, optimizer, loss)
            del h1, h2


class NoiseInBackward(chainer.FunctionHook):
    """Writes to what a function retained, just before its backward reads it."""

    name = 'NoiseInBackward'

    def backward_preprocess(self, function, in_data, out_grad):
        if function.label == 'LinearFunction':
            in_data[0][:, 0] = 0.25


@program
def written_by_a_hook_in_backward(run):
    model = Perceptron()
    optimizer = setup(model)
    with NoiseInBackward():
        for number in range(4):
            train_on(run, model, optimizer, *vectors(number))


@program
def parameter_written_after_forward(run):
    """Weights clipped between forward and backward: the gradients of the inputs use the clipped ones."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        for parameter in model.params():
            parameter.array.clip(-0.2, 0.2, out=parameter.array)
        learn(run, model, optimizer, loss)


@program
def gradient_written_between_backward_and_update(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
        model.cleargrads()
        loss.backward(retain_grad=True)
        h.grad[:, ::2] = 0
        model.l2.W.grad *= 0.5
        optimizer.update()
        run.note('gradient', h.grad)
        run.note_link(model)
        run.ended()


@program
def written_after_backward_and_read_again(run):
    """A map is changed after backward, then a second head is trained on it."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        h1, h2, loss = hidden_and_loss(model, *vectors(number))
        model.cleargrads()
        loss.backward()
        h2.array *= 2
        second = F.mean(F.square(model.l3(h2)))
        second.backward()
        optimizer.update()
        run.note('second', second)
        run.note('map', h2)
        run.note_link(model)
        run.ended()
        del h1, h2


class Deep(chainer.Chain):
    """Cheap layers in a row, whose maps can be made again; shows one of them when it is told to."""

    def __init__(self, shows=()):
        super().__init__()
        self.shows, self.shown, self.calls = shows, None, 0
        with self.init_scope():
            self.l1, self.l2, self.l3 = (chainer.links.Linear(32, 96), chainer.links.Linear(96, 96),
                                         chainer.links.Linear(96, 10))

    def forward(self, x):
        h = F.sigmoid(self.l1(x))
        self.shown = h if self.calls in self.shows else None
        self.calls += 1
        h = F.tanh(F.leaky_relu(F.softplus(h) - 1))
        h = F.sigmoid(F.tanh(self.l2(F.elu(h))))
        return self.l3(F.softplus(F.tanh(h)))


def train_deep(run, shows, write, count=6, writes=None):
    model = Deep(shows)
    optimizer = setup(model)
    for number in range(count):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        if model.shown is not None and (writes is None or number in writes):
            write(model)
        learn(run, model, optimizer, loss)


def halve(model):
    model.shown.array *= np.float32(0.5)


@program
def deep_map_written_in_each_iteration(run):
    """What lies behind a shown map must not be made again from it."""
    train_deep(run, range(6), halve)


@program
def deep_map_shown_always_and_written_at_times(run):
    train_deep(run, range(6), halve, writes=(2, 5))


@program
def deep_map_shown_and_written_at_times(run):
    """The recorded iteration showed nothing: the plan makes maps again."""
    train_deep(run, (3, 5), halve, 7)


@program
def deep_map_written_and_let_go_at_times(run):
    """Nothing shows it any more when backward begins."""
    def write(model):
        halve(model)
        model.shown = None
    train_deep(run, (3, 5), write, 7)


@program
def deep_map_written_through_a_kept_array(run):
    """The Variable is gone when the program writes, and then the array too."""
    def write(model):
        raw = model.shown.array
        model.shown = None
        raw[::2] = 0.25
    train_deep(run, (2, 3, 5), write, 7)


@program
def batch_written_between_forward_and_backward_at_times(run):
    """The batch's buffer is filled early in some iterations: what lies behind it is made again from it otherwise."""
    model = Deep()
    optimizer = setup(model)
    x, t = vectors(0)
    for number in range(7):
        np.copyto(x, vectors(number)[0])
        loss = F.softmax_cross_entropy(model(x), t)
        if number in (0, 3, 5):
            x *= np.float32(0.5)
        learn(run, model, optimizer, loss)


@program
def parameters_written_between_forward_and_backward_at_times(run):
    """Maps that are made again must not come from the new weights."""
    model = Deep()
    optimizer = setup(model)
    for number in range(7):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        if number in (0, 3, 5):
            model.l1.W.array *= np.float32(0.5)
            model.l2.b.array += np.float32(0.5)
        learn(run, model, optimizer, loss)


@program
def running_statistics_written_between_forward_and_backward(run):
    model = Convolutions()
    optimizer = setup(model)
    for number in range(5):
        x, t = images(number)
        loss = F.softmax_cross_entropy(model(x), t)
        model.n1.avg_mean[...] = 0
        model.n2.gamma.array *= np.float32(0.5)
        learn(run, model, optimizer, loss)


@program
def random_stream_seeded_between_forward_and_backward(run):
    """Dropout masks belong to forward, whatever the stream is when maps are made again."""
    model = Deep()
    optimizer = setup(model)
    for number in range(5):
        x, t = vectors(number)
        h = F.dropout(F.tanh(F.dropout(F.tanh(model.l1(x)), 0.3)), 0.3)
        loss = F.softmax_cross_entropy(model.l3(F.dropout(F.tanh(model.l2(h)))), t)
        del h
        np.random.seed(number)
        np.random.rand(7)
        learn(run, model, optimizer, loss)


@program
def attributes_of_links_changed_between_forward_and_backward(run):
    """A slope and a rate that functions were given before."""
    model = Deep()
    model.slope = np.full((), 0.1, np.float32)
    optimizer = setup(model)
    for number in range(5):
        x, t = vectors(number)
        h = F.tanh(F.tanh(model.l1(x)) * model.slope)
        loss = F.softmax_cross_entropy(model.l3(F.tanh(F.tanh(model.l2(h)) * model.slope)), t)
        del h
        model.slope[...] = number
        learn(run, model, optimizer, loss)


class WritesInputs(chainer.FunctionHook):
    """Halves what one step of backward has read, for the steps after it."""

    name = 'WritesInputs'

    def backward_postprocess(self, function, in_data, out_grad):
        if function.label in ('Softplus', 'ELU') and in_data[0] is not None:
            in_data[0][:, ::2] *= np.float32(0.5)


@program
def written_by_a_hook_for_later_steps(run):
    """Several functions retain one map; the hook lets go of it between their steps."""
    model = Perceptron()
    optimizer = setup(model)
    with WritesInputs():
        for number in range(5):
            x, t = vectors(number)
            h = model.l1(x)
            h = F.elu(h) + F.softplus(h) + h * h
            loss = F.softmax_cross_entropy(model.l3(F.tanh(model.l2(h))), t)
            del h
            learn(run, model, optimizer, loss)


class ScaleGradients(chainer.FunctionHook):
    """Writes to gradients on their way."""

    name = 'ScaleGradients'

    def backward_preprocess(self, function, in_data, out_grad):
        if function.label == 'ReLU':
            out_grad[0][...] *= np.float32(0.5)


@program
def gradients_written_by_a_hook(run):
    model = Perceptron()
    optimizer = setup(model)
    with ScaleGradients():
        for number in range(4):
            train_on(run, model, optimizer, *vectors(number))


@program
def conditions_written_after_forward(run):
    """`F.where` holds the program's own condition, as large as the map."""
    model = Perceptron()
    optimizer = setup(model)
    condition = np.zeros((512, 96), bool)
    for number in range(5):
        x, t = vectors(number)
        condition[...] = np.random.RandomState(number).rand(512, 96) < 0.7
        h = F.tanh(model.l1(x))
        h = F.where(condition, F.tanh(h), F.sigmoid(h))
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
        del h
        condition[::2] = True
        learn(run, model, optimizer, loss)


@program
def words_written_after_forward(run):
    """The integer buffer of an embedding is filled with the next batch too early."""
    embed, model = chainer.links.EmbedID(50, 64), Perceptron(inputs=64)
    both = chainer.ChainList(embed, model)
    optimizer = setup(both)
    words = np.random.RandomState(0).randint(0, 50, 512).astype(np.int32)
    for number in range(5):
        _, t = vectors(number)
        loss = F.softmax_cross_entropy(model(F.tanh(F.tanh(embed(words)))), t)
        words[...] = np.random.RandomState(number).randint(0, 50, 512)
        learn(run, both, optimizer, loss)


@program
def masks_shared_and_written(run):
    """The mask of one dropout goes into another, is changed, and is read after backward."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(5):
        x, t = vectors(number)
        h, mask = F.dropout(F.tanh(model.l1(x)), 0.5, return_mask=True)
        h = F.dropout(F.tanh(h), 0.5, mask=mask)
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
        del h
        if number % 2:
            mask[:, 0] = 3
        learn(run, model, optimizer, loss)
        run.note('mask', mask)


@program
def parameters_exchanged_between_forward_and_backward(run):
    """`W.array = ...` and `load_npz`: other arrays, or other values in the same."""
    import io
    model = Deep()
    optimizer = setup(model)
    file = io.BytesIO()
    chainer.serializers.save_npz(file, model)
    for number in range(6):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        if number % 3 == 1:
            model.l2.W.array = model.l2.W.array * np.float32(0.5)
        if number % 3 == 2:
            file.seek(0)
            chainer.serializers.load_npz(file, model)
        learn(run, model, optimizer, loss)
