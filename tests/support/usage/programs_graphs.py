"""Unusual graphs and backward passes: several, partial, double, truncated, with hooks and retained gradients."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import function_hooks, link_hooks

from support.usage.usage_programs import Convolutions, Perceptron, images, learn, program, setup, train_on, vectors


@program
def gradients_accumulated(run):
    """One update for four batches."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(3):
        model.cleargrads()
        for part in range(4):
            x, t = vectors(4 * number + part, batch=256)
            loss = F.softmax_cross_entropy(model(x), t) / 4
            loss.backward()
            run.note('loss', loss)
            run.ended()
        optimizer.update()
        run.note_link(model)


@program
def gradients_accumulated_over_a_split_batch(run):
    model = Convolutions()
    optimizer = setup(model)
    for number in range(3):
        x, t = images(number, batch=24)
        model.cleargrads()
        for start in range(0, 24, 8):
            loss = F.softmax_cross_entropy(model(x[start:start + 8]), t[start:start + 8])
            loss.backward()
            run.note('loss', loss)
            run.ended()
        optimizer.update()
        run.note_link(model)


@program
def backward_twice_over_one_graph(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        model.cleargrads()
        loss.backward()
        run.note_link(model)
        loss.cleargrad()
        learn(run, model, optimizer, loss)


@program
def second_backward_now_and_then(run):
    """The graph that was recorded ran backward once; later ones run it twice."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(6):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        if number % 3 == 2:
            model.cleargrads()
            loss.backward()
            run.note_link(model)
            loss.cleargrad()
        learn(run, model, optimizer, loss)


@program
def two_losses_of_one_trunk(run):
    """Backward of each on its own."""
    model = chainer.ChainList(Perceptron(outputs=64), L.Linear(64, 10), L.Linear(64, 32))
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model[0](x))
        classes = F.softmax_cross_entropy(model[1](h), t)
        decoded = F.mean_squared_error(model[2](h), x)
        model.cleargrads()
        classes.backward()
        decoded.backward()
        optimizer.update()
        run.note('losses', np.array([classes.array, decoded.array]))
        run.note_link(model)
        run.ended()


@program
def losses_summed(run):
    model = chainer.ChainList(Perceptron(outputs=64), L.Linear(64, 10), L.Linear(64, 32))
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model[0](x))
        loss = F.softmax_cross_entropy(model[1](h), t) + 0.5 * F.mean_squared_error(model[2](h), x)
        learn(run, model, optimizer, loss)


class Generator(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l0 = L.Linear(16, 16 * 4 * 4)
            self.n0 = L.BatchNormalization(16 * 4 * 4)
            self.c1 = L.Deconvolution2D(16, 8, 4, stride=2, pad=1)
            self.n1 = L.BatchNormalization(8)
            self.c2 = L.Deconvolution2D(8, 3, 4, stride=2, pad=1)

    def forward(self, z):
        h = F.reshape(F.relu(self.n0(self.l0(z))), (len(z), 16, 4, 4))
        return F.tanh(self.c2(F.relu(self.n1(self.c1(h)))))


class Discriminator(chainer.Chain):
    def __init__(self, normalized=True):
        super().__init__()
        self.normalized = normalized
        with self.init_scope():
            self.c0 = L.Convolution2D(3, 8, 4, stride=2, pad=1)
            self.c1 = L.Convolution2D(8, 16, 4, stride=2, pad=1)
            self.n1 = L.BatchNormalization(16)
            self.l2 = L.Linear(16 * 4 * 4, 1)

    def forward(self, x):
        h = F.leaky_relu(self.c0(x))
        h = self.c1(h)
        h = F.leaky_relu(self.n1(h) if self.normalized else h)
        return self.l2(h)


def noise(number, batch=32):
    return np.random.RandomState(3000 + number).uniform(-1, 1, (batch, 16)).astype(np.float32)


def finish(run, models, losses):
    run.note('losses', np.array([loss.array for loss in losses]))
    for model in models:
        run.note_link(model)
    run.ended()


@program
def gan_with_shared_graph(run):
    """DCGAN as in Chainer's example: both losses hang on one graph, each has a backward pass of its own."""
    gen, dis = Generator(), Discriminator()
    gen_optimizer = setup(gen, chainer.optimizers.Adam(alpha=0.0002, beta1=0.5))
    dis_optimizer = setup(dis, chainer.optimizers.Adam(alpha=0.0002, beta1=0.5))
    for number in range(4):
        real = dis(images(number, batch=32)[0])
        fake = gen(noise(number))
        judged = dis(fake)
        dis_loss = F.sum(F.softplus(-real)) / 32 + F.sum(F.softplus(judged)) / 32
        gen_loss = F.sum(F.softplus(-judged)) / 32
        gen.cleargrads()
        gen_loss.backward()
        gen_optimizer.update()
        dis.cleargrads()
        dis_loss.backward()
        dis_optimizer.update()
        finish(run, (gen, dis), (gen_loss, dis_loss))


@program
def gan_with_unchained_fakes(run):
    gen, dis = Generator(), Discriminator()
    gen_optimizer, dis_optimizer = setup(gen), setup(dis)
    for number in range(4):
        fake = gen(noise(number))
        gen_loss = F.mean(F.softplus(-dis(fake)))
        gen.cleargrads()
        gen_loss.backward()
        gen_optimizer.update()
        fake.unchain_backward()
        dis_loss = F.mean(F.softplus(-dis(images(number, batch=32)[0]))) + F.mean(F.softplus(dis(fake)))
        dis.cleargrads()
        dis_loss.backward()
        dis_optimizer.update()
        finish(run, (gen, dis), (gen_loss, dis_loss))


@program
def gan_in_several_critic_steps(run):
    """WGAN with clipped weights: three steps of the critic for one of the generator."""
    gen, critic = Generator(), Discriminator(normalized=False)
    gen_optimizer, critic_optimizer = setup(gen), setup(critic, chainer.optimizers.RMSprop(1e-3))
    for number in range(2):
        for step in range(3):
            run.graph('critic')
            with chainer.no_backprop_mode():
                fake = gen(noise(10 * number + step))
            loss = F.mean(critic(fake)) - F.mean(critic(images(10 * number + step, batch=32)[0]))
            learn(run, critic, critic_optimizer, loss)
            for parameter in critic.params():
                np.clip(parameter.array, -0.1, 0.1, out=parameter.array)
        run.graph('generator')
        learn(run, gen, gen_optimizer, -F.mean(critic(gen(noise(50 + number)))))


@program
def gradient_penalty(run):
    """WGAN-GP: the norm of a gradient is part of the loss."""
    critic = Discriminator(normalized=False)
    optimizer = setup(critic, chainer.optimizers.Adam())
    for number in range(4):
        real, fake = images(number)[0], images(40 + number)[0]
        x = chainer.Variable(0.5 * real + np.float32(0.5) * fake)
        y = critic(x)
        gradient, = chainer.grad([y], [x], enable_double_backprop=True)
        norm = F.sqrt(F.batch_l2_norm_squared(gradient))
        penalty = 10 * F.mean_squared_error(norm, np.ones(norm.shape, np.float32))
        learn(run, critic, optimizer, F.mean(critic(fake)) - F.mean(critic(real)) + penalty)


@program
def double_backprop_by_backward(run):
    """`backward(enable_double_backprop=True)`, and backward of the gradient's norm."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(3):
        array, t = vectors(number)
        x = chainer.Variable(array)
        h = F.tanh(model.l2(F.tanh(model.l1(x))))
        loss = F.softmax_cross_entropy(model.l3(h), t, enable_double_backprop=True)
        loss.backward(enable_double_backprop=True)
        x_grad = x.grad_var
        model.cleargrads()
        x.cleargrad()
        penalty = F.sum(x_grad * x_grad)
        penalty.backward()
        optimizer.update()
        run.note('penalty', penalty)
        run.note('gradient', x_grad)
        run.note('gradient of the batch', x.grad)
        run.note_link(model)
        run.ended()


@program
def gradients_of_hidden_layers(run):
    """`chainer.grad` of several outputs with regard to several inputs."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(3):
        array, t = vectors(number)
        x = chainer.Variable(array)
        h1 = F.relu(model.l1(x))
        h2 = F.sigmoid(model.l2(h1))
        loss = F.softmax_cross_entropy(model.l3(h2), t)
        for gradient in chainer.grad([loss], [x, h1, h2]):
            run.note('gradient', gradient)
        of_two = chainer.grad([h2, h1], [x], [chainer.Variable(np.ones_like(h2.array)), None], set_grad=True)
        run.note('of two', of_two[0])
        learn(run, model, optimizer, loss)


@program
def second_derivatives(run):
    """Hessian times vector, by two nested calls of `chainer.grad`."""
    model = Perceptron()
    for number in range(3):
        array, _t = vectors(number, batch=256)
        x = chainer.Variable(array)
        y = F.sum(F.tanh(model.l2(F.tanh(model.l1(x)))) ** 2)
        first, = chainer.grad([y], [x], enable_double_backprop=True)
        second, = chainer.grad([F.sum(first * np.float32(0.5))], [x])
        run.note('first', first)
        run.note('second', second)
        run.ended()


@program
def gradients_retained(run):
    model = Convolutions()
    optimizer = setup(model)
    for number in range(4):
        x, t = images(number)
        h1 = F.relu(model.n1(model.c1(x)))
        h2 = F.relu(model.n2(model.c2(F.max_pooling_2d(h1, 2))))
        loss = F.softmax_cross_entropy(model.fc(F.average_pooling_2d(h2, 2)), t)
        model.cleargrads()
        loss.backward(retain_grad=True)
        optimizer.update()
        run.note('gradient', h1.grad)
        run.note('gradient', h2.grad)
        run.note('map', h2)
        run.note_link(model)
        run.ended()


@program
def class_activation_map(run):
    """Grad-CAM: gradient of one class with regard to the last map, and that map itself, after backward."""
    model = Convolutions()
    with chainer.using_config('train', False):
        for number in range(4):
            x, t = images(number)
            h = F.relu(model.n2(model.c2(F.max_pooling_2d(F.relu(model.n1(model.c1(x))), 2))))
            score = model.fc(F.average_pooling_2d(h, 2))
            score.grad = np.eye(10, dtype=np.float32)[t]
            model.cleargrads()
            score.backward(retain_grad=True)
            weights = h.grad.mean(axis=(2, 3), keepdims=True)
            run.note('map', np.maximum((weights * h.array).sum(axis=1), 0))
            run.ended()


@program
def loss_scaled(run):
    model = Perceptron()
    optimizer = setup(model)
    optimizer.set_loss_scale(128)
    for number in range(4):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        model.cleargrads()
        loss.backward(loss_scale=128)
        optimizer.update()
        run.note('loss', loss)
        run.note_link(model)
        run.ended()


@program
def output_gradients_given(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, _ = vectors(number)
        y = model(x)
        y.grad = np.random.RandomState(number).uniform(-1, 1, y.shape).astype(np.float32)
        model.cleargrads()
        y.backward()
        optimizer.update()
        run.note('output', y)
        run.note_link(model)
        run.ended()


class Recurrent(chainer.Chain):
    def __init__(self, size=32, units=64):
        super().__init__()
        with self.init_scope():
            self.lstm = L.LSTM(size, units)
            self.out = L.Linear(units, 10)

    def forward(self, x):
        return self.out(self.lstm(x))


@program
def truncated_backpropagation(run):
    """A stateful LSTM: backward every four steps, then `unchain_backward`."""
    model = Recurrent()
    optimizer = setup(model, None, chainer.optimizer_hooks.GradientClipping(5))
    model.lstm.reset_state()
    loss = 0
    for number in range(12):
        x, t = vectors(number, batch=128)
        loss += F.softmax_cross_entropy(model(x), t)
        if number % 4 == 3:
            model.cleargrads()
            loss.backward()
            loss.unchain_backward()
            optimizer.update()
            run.note('loss', loss)
            run.note('state', model.lstm.h)
            run.note('cell', model.lstm.c)
            run.note_link(model)
            run.ended()
            loss = 0


@program
def truncated_backpropagation_without_unchain(run):
    """Forgotten: every backward pass goes further back, through graphs that were run before."""
    model = Recurrent()
    optimizer = setup(model)
    for number in range(6):
        run.graph(f'{number + 1} steps')
        x, t = vectors(number, batch=128)
        learn(run, model, optimizer, F.softmax_cross_entropy(model(x), t))


@program
def unchained_in_the_middle(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l2(F.relu(model.l1(x))))
        if number % 2:
            h.unchain()
        model.cleargrads()
        loss = F.softmax_cross_entropy(model.l3(h), t)
        loss.backward()
        optimizer.update()
        run.note('loss', loss)
        run.note('hidden', h)
        run.note_link(model)
        run.ended()


@program
def stopped_by_copies_of_arrays(run):
    """Target networks: `h.array` goes on as a constant."""
    model = Perceptron(outputs=96)
    optimizer = setup(model)
    for number in range(4):
        x, _ = vectors(number)
        target = model(x).array
        y = model(np.roll(x, 1, axis=0))
        learn(run, model, optimizer, F.mean(F.huber_loss(y, target, 1.0)))


class Reads(chainer.FunctionHook):
    """Reads everything that it is given, before and after each call and step."""

    name = 'Reads'

    def __init__(self, run):
        self.run = run

    def forward_preprocess(self, function, in_data):
        self.run.note('before call', sum(float(abs(each).sum()) for each in in_data))

    def forward_postprocess(self, function, in_data):
        self.run.note('inputs', sum(float(abs(each).sum()) for each in in_data))

    def backward_preprocess(self, function, in_data, out_grad):
        self.run.note('retained', sum(float(abs(each).sum()) for each in in_data if each is not None))
        self.run.note('gradients', sum(float(each.sum()) for each in out_grad if each is not None))

    def backward_postprocess(self, function, in_data, out_grad):
        self.run.note('retained', sum(float(abs(each).sum()) for each in in_data if each is not None))


@program
def function_hook_that_reads_everything(run):
    model = Convolutions()
    optimizer = setup(model)
    with Reads(run):
        for number in range(4):
            train_on(run, model, optimizer, *images(number))


@program
def function_hook_on_some_iterations(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(6):
        if number % 3 == 2:
            with Reads(run):
                train_on(run, model, optimizer, *vectors(number))
        else:
            train_on(run, model, optimizer, *vectors(number))


class Keeps(chainer.FunctionHook):
    """Keeps the arrays that it is given, for a plot."""

    name = 'Keeps'

    def __init__(self):
        self.kept = []

    def forward_postprocess(self, function, in_data):
        self.kept.append(in_data[0])

    def backward_postprocess(self, function, in_data, out_grad):
        self.kept.append(in_data[0])


@program
def function_hook_that_keeps_arrays(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        with Keeps() as hook:
            train_on(run, model, optimizer, *vectors(number))
        for array in hook.kept:
            run.note('kept', array)


@program
def timer_and_profile_hooks(run):
    model = Convolutions()
    optimizer = setup(model)
    timer = function_hooks.TimerHook()
    with timer:
        for number in range(3):
            train_on(run, model, optimizer, *images(number))
    run.note('calls timed', len(timer.call_history))


@program
def hook_of_one_function(run):
    """A hook added to a FunctionNode, not to the thread."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = model.l1(x)
        relu = F.activation.relu.ReLU()
        relu.add_hook(Reads(run))
        h, = relu.apply((h,))
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t))


@program
def link_hooks_that_change_weights(run):
    model = Convolutions()
    model.c1.add_hook(link_hooks.WeightStandardization())
    model.c2.add_hook(link_hooks.SpectralNormalization())
    model.fc.add_hook(link_hooks.TimerHook())
    optimizer = setup(model)
    for number in range(4):
        x, t = images(number)
        learn(run, model, optimizer, F.softmax_cross_entropy(model(x), t))


@program
def forget(run):
    """Chainer's own recomputation around a part of the graph."""
    model = Perceptron()
    optimizer = setup(model)

    def middle(h):
        return F.relu(model.l2(F.relu(h)))
    for number in range(4):
        x, t = vectors(number)
        h = F.forget(middle, model.l1(x))
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(h), t))


@program
def frozen_layers(run):
    """The first layer gets no gradient from the fourth iteration on, and is thawed again."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(7):
        if number == 3:
            model.l1.disable_update()
        if number == 5:
            model.l1.enable_update()
        train_on(run, model, optimizer, *vectors(number))


@program
def alternating_batch_sizes(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(9):
        size = (512, 256, 384)[number % 3]
        run.graph(f'batch of {size}')
        train_on(run, model, optimizer, *vectors(number, batch=size))


@program
def smaller_last_batch(run):
    model = Convolutions()
    optimizer = setup(model)
    for number in range(6):
        size = 11 if number % 3 == 2 else 16
        run.graph(f'batch of {size}')
        train_on(run, model, optimizer, *images(number, batch=size))


@program
def growing_batches(run):
    """Every graph is larger than those before."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(5):
        size = 128 * (number + 1)
        for count in range(2):
            run.graph(f'batch of {size}')
            train_on(run, model, optimizer, *vectors(2 * number + count, batch=size))


@program
def branches_drawn_anew(run):
    """Stochastic depth: another graph in nearly every iteration."""
    model = chainer.ChainList(*(L.Linear(64, 64) for _ in range(5)))
    top = L.Linear(64, 10)
    both = chainer.ChainList(model, top)
    optimizer = setup(both)
    drawn = np.random.RandomState(8)
    for number in range(8):
        x, t = vectors(number, size=64)
        h = chainer.as_variable(x)
        taken = [layer for layer in model if drawn.rand() < 0.7]
        run.graph(f'{len(taken)} layers')
        for layer in taken:
            h = h + F.relu(layer(h))
        learn(run, both, optimizer, F.softmax_cross_entropy(top(h), t))


@program
def several_models_one_after_another(run):
    """Three networks in one iteration, each with an optimizer of its own."""
    models = [Perceptron(units=64), Convolutions(), Perceptron(units=128)]
    optimizers = [setup(model, chainer.optimizers.Adam()) for model in models]
    for number in range(3):
        for model, optimizer, batch in zip(models, optimizers, (vectors, images, vectors), strict=True):
            run.graph(str(models.index(model)))
            train_on(run, model, optimizer, *batch(number))


@program
def teacher_and_student(run):
    """Distillation: both graphs at once, the teacher's without backprop."""
    teacher, student = Convolutions(), Convolutions()
    optimizer = setup(student)
    for number in range(4):
        x, t = images(number)
        with chainer.using_config('train', False), chainer.no_backprop_mode():
            wanted = teacher(x)
        y = student(x)
        loss = F.mean_squared_error(y, wanted) + 0.1 * F.softmax_cross_entropy(y, t)
        learn(run, student, optimizer, loss)


@program
def two_graphs_crosswise(run):
    """Forward of two models, then backward of the first, then of the second."""
    models = [Perceptron(), Perceptron(units=64)]
    optimizers = [setup(model) for model in models]
    for number in range(4):
        x, t = vectors(number)
        losses = [F.softmax_cross_entropy(model(x), t) for model in models]
        for model, optimizer, loss in zip(models, optimizers, losses, strict=True):
            learn(run, model, optimizer, loss)


@program
def siamese(run):
    """One model, three inputs, shared parameters."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        anchor, near, far = (vectors(3 * number + part, batch=256)[0] for part in range(3))
        learn(run, model, optimizer, F.triplet(model(anchor), model(near), model(far)))


@program
def graph_without_parameters(run):
    """Only the batch has a gradient."""
    for number in range(4):
        x = chainer.Variable(images(number)[0])
        y = F.sum(F.relu(F.local_response_normalization(F.tanh(x))) ** 2)
        y.backward()
        run.note('gradient', x.grad)
        run.note('sum', y)
        run.ended()


@program
def maps_read_after_backward(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h1 = F.relu(model.l1(x))
        h2 = F.dropout(F.relu(model.l2(h1)), 0.3)
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(h2), t))
        run.note('first', h1)
        run.note('second', h2)
        run.note('from the node', h2.creator.inputs[0].data)


@program
def graph_walked(run):
    """Walks from the loss to the inputs and looks at every array, before and after backward."""
    model = Perceptron()
    optimizer = setup(model)

    def walk(variable):
        function = variable.creator_node
        while function is not None:
            for node in function.inputs:
                run.note(function.label, node.data)
            function = function.inputs[0].creator_node
    for number in range(4):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        if number % 2:
            walk(loss)
        learn(run, model, optimizer, loss)
        walk(loss)


@program
def learning_to_learn(run):
    """MAML: two inner steps of descent are part of the graph; backward goes through their gradients."""
    model = Perceptron(units=64)
    optimizer = setup(model, chainer.optimizers.Adam())
    names = sorted(name for name, _ in model.namedparams())

    def forward(weights, x):
        h = F.tanh(F.linear(x, weights['/l1/W'], weights['/l1/b']))
        h = F.tanh(F.linear(h, weights['/l2/W'], weights['/l2/b']))
        return F.linear(h, weights['/l3/W'], weights['/l3/b'])
    for number in range(3):
        x, t = vectors(number, 256)
        weights = dict(model.namedparams())
        for _ in range(2):
            loss = F.softmax_cross_entropy(forward(weights, x), t, enable_double_backprop=True)
            gradients = chainer.grad([loss], [weights[name] for name in names], enable_double_backprop=True)
            weights = {name: weights[name] - 0.1 * gradient for name, gradient in zip(names, gradients, strict=True)}
        x, t = vectors(40 + number, 256)
        learn(run, model, optimizer, F.softmax_cross_entropy(forward(weights, x), t))


@program
def everything_about_variables_asked(run):
    """Shapes, texts, comparisons, pictures of the graph: before and after backward."""
    import io
    from contextlib import redirect_stdout

    from chainer import computational_graph
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
        for moment in ('before', 'after'):
            run.note(moment, np.array([*h.shape, h.size, h.ndim, len(h), h.rank, h.dtype.itemsize]))
            run.note(moment, np.frombuffer(repr(h).encode(), np.uint8))
            with redirect_stdout(io.StringIO()):
                print(h, h.summary(), computational_graph.build_computational_graph([loss]).dump())
            run.note(moment, h[3:5, ::7])
            run.note(moment, float(h.array[0, 0]))
            run.note(moment, h.T.array[:2])
            if moment == 'before':
                learn(run, model, optimizer, loss)


@program
def models_moved_between_devices(run):
    """`to_device` on a machine without a GPU changes nothing."""
    model = Perceptron()
    model.to_device('@numpy')
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        with chainer.using_device('@numpy'):
            h = F.relu(model.l1(chainer.get_device('@numpy').send(x)))
            h.to_device('@numpy')
            loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
            model.to_device('@numpy')
        learn(run, model, optimizer, loss)


@program
def generator_that_yields_graphs(run):
    """Iterations interleave: each graph is taken to backward only when the next has been built."""
    model = Perceptron()
    optimizer = setup(model)

    def graphs():
        for number in range(5):
            x, t = vectors(number)
            yield F.softmax_cross_entropy(model(x), t)
    source = graphs()
    waiting = next(source)
    for following in source:
        learn(run, model, optimizer, waiting)
        waiting = following
    learn(run, model, optimizer, waiting)


@program
def inner_optimisation_inside_forward(run):
    """A forward pass that trains another model to its end while the outer graph waits."""
    model, inner = Perceptron(), Perceptron(units=64)
    optimizer, inner_optimizer = setup(model), setup(inner)
    for number in range(3):
        x, t = vectors(number)
        run.graph('outer')
        h = F.relu(model.l1(x))
        run.graph('inner')
        for step in range(2):
            train_on(run, inner, inner_optimizer, *vectors(10 * number + step, 256))
        run.graph('outer')
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t))


@program
def array_of_one_graph_held_while_a_larger_one_runs(run):
    """The floor that is named when the first graph comes has to be enough for the second beside that array."""
    first, second = Perceptron(), Convolutions()
    optimizers = setup(first), setup(second)
    for number in range(4):
        x, t = vectors(number)
        hidden = F.relu(first.l1(x))
        held = hidden.array
        loss = F.softmax_cross_entropy(first.l3(F.relu(first.l2(hidden))), t)
        learn(run, first, optimizers[0], loss)
        del hidden, loss
        train_on(run, second, optimizers[1], *images(number, batch=24))
        run.note('held', held)
        del held
