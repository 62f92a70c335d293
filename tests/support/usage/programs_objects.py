"""Models, optimizers, serialization, copies, and the configuration that changes while a program runs."""
import copy
import io
import multiprocessing
import pickle
import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import optimizer_hooks, optimizers, serializers

import chainer_ooc
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


@program
def saved_and_loaded_in_the_middle(run):
    model = Perceptron()
    optimizer = setup(model, optimizers.Adam())
    train(run, model, optimizer, 3)
    saved, state = io.BytesIO(), io.BytesIO()
    serializers.save_npz(saved, model)
    serializers.save_npz(state, optimizer)
    train(run, model, optimizer, 2, first=3)
    saved.seek(0)
    state.seek(0)
    model = Perceptron()
    optimizer = setup(model, optimizers.Adam())
    serializers.load_npz(saved, model)
    serializers.load_npz(state, optimizer)
    train(run, model, optimizer, 2, first=3)


@program
def saved_between_forward_and_backward(run):
    model = Convolutions()
    optimizer = setup(model)
    for number in range(4):
        x, t = images(number)
        loss = F.softmax_cross_entropy(model(x), t)
        file = io.BytesIO()
        serializers.save_npz(file, model)
        learn(run, model, optimizer, loss)
        if number == 2:
            file.seek(0)
            serializers.load_npz(file, model)


@program
def model_copied_between_forward_and_backward(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        copies = [copy.deepcopy(model), model.copy(), model.copy('copy')]
        learn(run, model, optimizer, loss)
        for each in copies:
            run.note_link(each)


@program
def lstm_copied_with_its_state(run):
    """`copy.deepcopy` of a link whose state hangs in the graph."""
    model = L.LSTM(32, 64)
    head = L.Linear(64, 10)
    both = chainer.ChainList(model, head)
    optimizer = setup(both)
    for number in range(3):
        model.reset_state()
        x, t = vectors(number, 256)
        model(x)
        branch = copy.copy(model)
        a = F.softmax_cross_entropy(head(model(x)), t)
        b = F.softmax_cross_entropy(head(branch(np.roll(x, 1, 0))), t)
        learn(run, both, optimizer, a + b)


@program
def variables_deeply_copied(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
        another = copy.deepcopy(h)
        shallow = copy.copy(h)
        learn(run, model, optimizer, loss)
        run.note('deep', another)
        run.note('shallow', shallow)


@program
def graph_deeply_copied(run):
    """The whole graph behind the loss, whose backward then runs too."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(3):
        x, t = vectors(number)
        loss = F.softmax_cross_entropy(model(x), t)
        another = copy.deepcopy(loss)
        learn(run, model, optimizer, loss)
        another.backward()
        run.note('copy', another)


@program
def variables_pickled(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
        text = pickle.dumps((h.array, model))
        learn(run, model, optimizer, loss)
        array, another = pickle.loads(text)
        run.note('hidden', array)
        run.note_link(another)


@program
def trained_after_pickling(run):
    model = Convolutions()
    train(run, model, setup(model), 2, images)
    model = pickle.loads(pickle.dumps(model))
    train(run, model, setup(model), 3, images, first=2)


@program
def model_unpickled_before_training(run):
    """Arrays that were unpickled lie over bytes, which no array owns."""
    model = pickle.loads(pickle.dumps(Perceptron()))
    train(run, model, setup(model, optimizers.MomentumSGD(0.1)), 4)


@program
def parameters_in_shared_memory(run):
    model = Perceptron()
    for parameter in model.params():
        shared = np.frombuffer(multiprocessing.RawArray('B', parameter.array.nbytes), parameter.dtype)
        shared[...] = parameter.array.ravel()
        parameter.array = shared.reshape(parameter.shape)
    train(run, model, setup(model, optimizers.MomentumSGD(0.1)), 4)


@program
def zerograds_in_place_of_cleargrads(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', DeprecationWarning)
            model.zerograds()
        loss = F.softmax_cross_entropy(model(x), t)
        loss.backward()
        optimizer.update()
        run.note_link(model)
        run.ended()


@program
def cleargrads_before_forward(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        model.cleargrads()
        loss = F.softmax_cross_entropy(model(x), t)
        loss.backward()
        optimizer.update()
        run.note('loss', loss)
        run.note_link(model)
        run.ended()


@program
def lazy_parameters(run):
    """Sizes of inputs are not given: the first forward makes the parameters."""
    model = chainer.Sequential(
        L.Convolution2D(None, 8, 3), F.relu, L.BatchNormalization(axis=(0, 2, 3)), lambda h: F.max_pooling_2d(h, 2),
        L.Linear(None, 64), F.relu, L.Linear(None, 10))
    train(run, model, setup(model, optimizers.Adam()), 4, images)


def with_optimizer(run, optimizer, *hooks):
    model = Perceptron()
    train(run, model, setup(model, optimizer, *hooks), 4)


@program
def plain_descent_with_decay(run):
    with_optimizer(run, optimizers.SGD(0.05), optimizer_hooks.WeightDecay(1e-3), optimizer_hooks.GradientClipping(0.5))


@program
def adam_with_hooks(run):
    with_optimizer(run, optimizers.Adam(), optimizer_hooks.GradientNoise(0.1), optimizer_hooks.Lasso(1e-4))


@program
def adagrad_and_hard_clipping(run):
    with_optimizer(run, optimizers.AdaGrad(), optimizer_hooks.GradientHardClipping(-0.01, 0.01))


@program
def rmsprop_graves_and_lars(run):
    with_optimizer(run, optimizers.RMSpropGraves(), optimizer_hooks.GradientLARS())


@program
def adam_with_decay_of_weights(run):
    with_optimizer(run, optimizers.AdamW(weight_decay_rate=1e-2))


@program
def other_optimizers(run):
    for make in (optimizers.NesterovAG, optimizers.AdaDelta, optimizers.CorrectedMomentumSGD, optimizers.SMORMS3,
                 optimizers.MSVAG, optimizers.RMSprop):
        run.graph(make.__name__)  # each has a state of another size
        model = Perceptron(units=64)
        train(run, model, setup(model, make()), 2)


@program
def optimizer_exchanged(run):
    model = Perceptron()
    train(run, model, setup(model, optimizers.Adam()), 3)
    train(run, model, setup(model, optimizers.MomentumSGD(0.01)), 3, first=3)


@program
def layers_added_between_iterations(run):
    """Progressive growing."""
    model = chainer.ChainList(L.Linear(32, 64))
    head = L.Linear(64, 10)
    for depth in range(1, 4):
        both = chainer.ChainList(model.copy(), head)
        optimizer = setup(both)
        for number in range(2):
            run.graph(f'depth {depth}')
            x, t = vectors(2 * depth + number)
            h = x
            for layer in both[0]:
                h = F.relu(layer(h))
            learn(run, both, optimizer, F.softmax_cross_entropy(head(h), t))
        model = both[0].copy()
        model.add_link(L.Linear(64, 64))


@program
def layer_replaced(run):
    """Transfer learning: another head on the trained body, which is frozen."""
    model = Perceptron()
    train(run, model, setup(model), 3)
    del model.l3
    with model.init_scope():
        model.l3 = L.Linear(48, 5)
    model.l1.disable_update()
    optimizer = setup(model)
    for number in range(3):
        x, t = vectors(number, classes=5)
        train_on(run, model, optimizer, x, t)


@program
def shared_and_tied_weights(run):
    """An autoencoder whose decoder uses the encoder's matrix, transposed."""
    layer = L.Linear(32, 96)
    bias = chainer.Parameter(0, (32,))
    model = chainer.Chain(layer=layer)
    with model.init_scope():
        model.bias = bias
    optimizer = setup(model, optimizers.Adam())
    for number in range(4):
        x, _ = vectors(number)
        h = F.sigmoid(layer(x))
        y = F.linear(h, F.transpose(layer.W), bias)
        learn(run, model, optimizer, F.mean_squared_error(y, x))


@program
def layers_repeated(run):
    """`repeat` with shared and with fresh parameters."""
    block = chainer.Sequential(L.Linear(64, 64), F.relu)
    model = chainer.Sequential(L.Linear(32, 64), block.repeat(2), block.repeat(2, 'share'), L.Linear(64, 10))
    train(run, model, setup(model), 4)


@program
def backprop_switched_off_and_on(run):
    """`enable_backprop` in the middle of the forward pass: the part before gets no gradient."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        with chainer.using_config('enable_backprop', number % 2 == 0):
            h = F.relu(model.l1(x))
        with chainer.no_backprop_mode(), chainer.force_backprop_mode():
            h = F.relu(model.l2(h))
        loss = F.softmax_cross_entropy(model.l3(h), t)
        run.graph(f'backprop {number % 2}')
        model.cleargrads()
        loss.backward()
        optimizer.update()
        run.note_link(model)
        run.ended()


@program
def policy_changed_in_between(run):
    """Another policy for each iteration, and between forward and backward."""
    model = Perceptron()
    optimizer = setup(model)
    policies = [run.policy, 'swap-all', 'keep', 'sublinear', run.policy] if run.policy else [None] * 5
    for number in range(10):
        x, t = vectors(number)
        run.graph(f'policy {policies[number % 5]}')
        with chainer.using_config('ooc', policies[number % 5]):
            loss = F.softmax_cross_entropy(model(x), t)
        learn(run, model, optimizer, loss)


@program
def budget_changed_in_between(run):
    """Small and large budgets in turn; the smallest is what the run has."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(8):
        budget = '1GB' if number % 2 else chainer.config.ooc_budget
        with chainer.using_config('ooc_budget', budget):
            train_on(run, model, optimizer, *vectors(number))


@program
def threshold_changed_in_between(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(6):
        run.graph(f'threshold {number // 2}')
        with chainer.using_config('ooc_min_bytes', (4096, 150000, 0)[number // 2]):
            train_on(run, model, optimizer, *vectors(number))


@program
def reset_between_iterations(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(6):
        if number % 2:
            chainer_ooc.reset()
        train_on(run, model, optimizer, *vectors(number))


@program
def reset_between_forward_and_backward(run):
    model = Convolutions()
    optimizer = setup(model)
    for number in range(5):
        x, t = images(number)
        h = F.relu(model.n1(model.c1(x)))
        loss = F.softmax_cross_entropy(model.fc(F.average_pooling_2d(F.relu(model.c2(F.max_pooling_2d(h, 2))), 2)), t)
        if number in (1, 3):
            chainer_ooc.reset()
        learn(run, model, optimizer, loss)
        run.note('map', h)


@program
def reset_with_old_graphs_alive(run):
    """The maps of two graphs are away when everything is forgotten; then both run backward."""
    model = Perceptron()
    optimizer = setup(model)
    train(run, model, optimizer, 2)
    losses = [F.softmax_cross_entropy(model(vectors(number)[0]), vectors(number)[1]) for number in range(3)]
    chainer_ooc.reset()
    for loss in losses:
        model.cleargrads()
        loss.backward()
        run.note('loss', loss)
        run.note_link(model)
        run.ended()
    train(run, model, optimizer, 2, first=3)


@program
def unset_between_forward_and_backward(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(6):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
        with chainer.using_config('ooc', None if number % 2 else run.policy):
            learn(run, model, optimizer, loss)
        run.note('map', h)


@program
def unset_for_forward_and_set_for_backward(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(6):
        x, t = vectors(number)
        with chainer.using_config('ooc', None if number % 2 else run.policy):
            loss = F.softmax_cross_entropy(model(x), t)
        learn(run, model, optimizer, loss)


@program
def unset_in_the_middle_of_forward(run):
    model = Perceptron()
    optimizer = setup(model)
    for number in range(6):
        x, t = vectors(number)
        run.graph(f'kind {number % 3}')
        h = F.relu(model.l1(x))
        with chainer.using_config('ooc', None if number % 3 == 1 else run.policy):
            h = F.relu(model.l2(h))
        learn(run, model, optimizer, F.softmax_cross_entropy(model.l3(h), t))


@program
def unset_after_training(run):
    """Maps of the last graph are read when out-of-core is off."""
    model = Perceptron()
    optimizer = setup(model)
    for number in range(4):
        x, t = vectors(number)
        h = F.relu(model.l1(x))
        loss = F.softmax_cross_entropy(model.l3(F.relu(model.l2(h))), t)
        learn(run, model, optimizer, loss)
    with chainer.using_config('ooc', None):
        run.note('map', h)
        train(run, model, optimizer, 2)
        loss.cleargrad()
        learn(run, model, optimizer, loss)


@program
def set_after_plain_training(run):
    """The first graph was made in plain Chainer and is run again under the policy."""
    model = Perceptron()
    optimizer = setup(model)
    with chainer.using_config('ooc', None):
        x, t = vectors(0)
        old = F.softmax_cross_entropy(model(x), t)
        learn(run, model, optimizer, old)
    train(run, model, optimizer, 3)
    old.cleargrad()
    learn(run, model, optimizer, old)
    train(run, model, optimizer, 2, first=4)
