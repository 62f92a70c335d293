"""Dtypes, layouts and sizes of arrays that are not C-ordered float32."""
import chainer
import chainer.functions as F
import numpy as np

from support.usage.usage_programs import Convolutions, Perceptron, images, learn, program, setup, train_on, vectors


def in_dtype(run, dtype, make, batch, optimizer=None):
    with chainer.using_config('dtype', dtype):
        model = make()
        optimizer = setup(model, optimizer)
        for number in range(4):
            x, t = batch(number)
            x = x.astype(np.float16 if dtype is chainer.mixed16 else dtype)
            learn(run, model, optimizer, F.softmax_cross_entropy(model(x), t))


@program
def half_precision(run):
    in_dtype(run, np.float16, Perceptron, vectors)


@program
def half_precision_images(run):
    in_dtype(run, np.float16, Convolutions, images)


@program
def double_precision(run):
    in_dtype(run, np.float64, Perceptron, vectors)


@program
def double_precision_images(run):
    in_dtype(run, np.float64, Convolutions, images)


@program
def mixed_precision(run):
    in_dtype(run, chainer.mixed16, Convolutions, images)


@program
def mixed_precision_with_scaled_loss(run):
    with chainer.using_config('dtype', chainer.mixed16):
        model = Perceptron()
        optimizer = setup(model)
        optimizer.use_fp32_update()
        optimizer.set_loss_scale(64)
        for number in range(4):
            x, t = vectors(number)
            loss = F.softmax_cross_entropy(model(x.astype(np.float16)), t)
            model.cleargrads()
            loss.backward(loss_scale=64)
            optimizer.update()
            run.note('loss', loss)
            run.note_link(model)
            run.ended()


@program
def mixed_precision_with_accumulated_gradients(run):
    """Float32 copies of parameters and the states of Adam come with the first update, after two iterations."""
    with chainer.using_config('dtype', chainer.mixed16):
        model = Perceptron(units=256)
        optimizer = setup(model, chainer.optimizers.Adam())
        optimizer.use_fp32_update()
        for number in range(6):
            x, t = vectors(number, batch=64)
            if number % 2 == 0:
                model.cleargrads()
            loss = F.softmax_cross_entropy(model(x.astype(np.float16)), t)
            loss.backward()
            if number % 2:
                optimizer.update()
            run.note('loss', loss)
            run.note_link(model)
            run.ended()


@program
def casts_in_between(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.cast(F.relu(model.l1(x)), np.float64)
        h = F.cast(F.tanh(F.cast(h, np.float16)), np.float32)
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t))


@program
def boolean_and_integer_maps(run):
    """Conditions for `F.where`, indices for `F.select_item`, all as large as the maps."""
    model = Perceptron(outputs=96)
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        y = model(x)
        condition = np.random.RandomState(number).rand(*y.shape) < 0.5
        h = F.where(condition, y, F.sigmoid(y))
        h = F.where(y.array > 0, h, -h)
        picked = F.select_item(h, t)
        order = np.argsort(y.array, axis=1).astype(np.int32)
        ranked = F.get_item(h, (np.arange(len(x))[:, None], order))
        learn(run, model, optimizer, F.mean(picked * picked) + F.mean(F.absolute(ranked[:, :20])))


@program
def integer_batches(run):
    """8-bit images, converted in the program; integer words for an embedding of several columns."""
    model = Convolutions()
    optimizer = setup(model)
    for number in range(4):
        x, t = images(number)
        bytes_ = ((x + 1) * 127).astype(np.uint8)
        train_on(run, model, optimizer, bytes_.astype(np.float32) / 255, t)
        run.note('bytes', bytes_)


@program
def zero_size_arrays(run):
    """Empty slices beside the others, and a batch of none."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        empty = F.tanh(h[:0])
        h = F.concat((empty, h, h[:, :0].reshape(0, 96)), axis=0)
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t) + F.sum(empty)
        learn(run, model, optimizer, loss)
        with chainer.no_backprop_mode():
            run.note('of none', model.l1(x[:0]))


def with_layout(run, lay_out, batch=vectors, make=Perceptron):
    model = make()
    optimizer = setup(model)
    for number in range(4):
        x, t = batch(number)
        x = lay_out(x)
        train_on(run, model, optimizer, x, t)
        run.note('strides', x.strides)


@program
def fortran_order(run):
    with_layout(run, np.asfortranarray)


@program
def fortran_order_of_images(run):
    with_layout(run, np.asfortranarray, images, Convolutions)


@program
def transposed_images(run):
    """Channels last in memory, first in shape."""
    with_layout(run, lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), images,
                Convolutions)


@program
def every_second_column(run):
    with_layout(run, lambda x: np.repeat(x, 2, axis=1)[:, ::2])


@program
def negative_strides(run):
    with_layout(run, lambda x: x[::-1, ::-1])


@program
def read_only_batches(run):
    def lay_out(x):
        x.flags.writeable = False
        return x
    with_layout(run, lay_out)


@program
def broadcast_batches(run):
    """One row in memory, 512 in shape."""
    with_layout(run, lambda x: np.broadcast_to(x[:1], x.shape))


@program
def batches_of_foreign_memory(run):
    """Arrays on a bytearray and on bytes: their memory is not numpy's."""
    with_layout(run, lambda x: np.frombuffer(bytearray(x.tobytes()), np.float32).reshape(x.shape))
    with_layout(run, lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape))


@program
def unaligned_batches(run):
    def lay_out(x):
        raw = np.zeros(x.nbytes + 1, np.uint8)
        view = raw[1:].view(np.float32).reshape(x.shape)
        view[...] = x
        return view
    with_layout(run, lay_out)


@program
def fields_of_records(run):
    """Batches are fields of structured arrays: strided views."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        records = np.zeros(len(x), [('t', np.int32), ('x', np.float32, (32,))])
        records['x'], records['t'] = x, t
        train_on(run, model, optimizer, records['x'], records['t'])


@program
def transposed_and_fortran_maps(run):
    """Functions of one's own that give arrays in other layouts."""
    class Fortran(chainer.FunctionNode):
        def forward(self, inputs):
            self.retain_inputs((0,))
            self.retain_outputs((0,))
            return np.asfortranarray(inputs[0] * inputs[0]),

        def backward(self, indexes, gradients):
            x, = self.get_retained_inputs()
            y, = self.get_retained_outputs()
            return gradients[0] * x * 2 + 0 * y,
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.tanh(model.l1(x))
        h, = Fortran().apply((F.transpose(h),))
        run.note('strides', h.array.strides)
        h = F.transpose(h)
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t))


@program
def old_style_function(run):
    """`chainer.Function`, with attributes that hold arrays, and several outputs of which one is unused."""
    class Split(chainer.Function):
        def forward(self, inputs):
            self.mask = inputs[0] > 0
            self.scaled = inputs[0] * np.float32(2)
            return self.scaled * self.mask, inputs[0] - self.scaled, self.scaled[:3].copy()

        def backward(self, inputs, gradients):
            positive = gradients[0] * 2 * self.mask if gradients[0] is not None else 0
            return positive - gradients[1] + 0 * self.scaled,
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h, rest, _ = Split()(model.l1(x))
        h = F.relu(model.l2(h + rest))
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(h), t))


@program
def identity_outputs(run):
    """A function of one's own that returns its input array itself, and one that returns a view of it."""
    class Same(chainer.FunctionNode):
        def __init__(self, view):
            self.view = view

        def forward(self, inputs):
            self.retain_outputs((0,))
            return inputs[0][:] if self.view else inputs[0],

        def backward(self, indexes, gradients):
            return gradients[0] + 0 * self.get_retained_outputs()[0],
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h, = Same(False).apply((F.sigmoid(model.l1(x)),))
        h, = Same(True).apply((F.sigmoid(model.l2(h)),))
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(h), t))
