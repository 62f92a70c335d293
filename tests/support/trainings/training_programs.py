"""Small trainings of the kinds that people write, each with something that a memory manager can trip over.

`PROGRAMS` maps a name to a function without arguments that trains for some iterations and returns a nest of arrays:
losses, gradients, parameters, running statistics, and what it looked at on the way.
"""
import io

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions


def images(number, size=4, channels=3, side=8):
    return np.random.RandomState(number).uniform(-1, 1, (size, channels, side, side)).astype(np.float32)


def labels(number, size=4, classes=5):
    return np.random.RandomState(number).randint(0, classes, size).astype(np.int32)


def state_of(*links):
    """Parameters, gradients and persistent values."""
    state = []
    for link in links:
        for name, parameter in sorted(link.namedparams()):
            state.append((name, parameter.array.copy(), None if parameter.grad is None else parameter.grad.copy()))
        for path, each in sorted(link.namedlinks()):
            state += [(path, name, np.copy(getattr(each, name))) for name in sorted(each._persistent)]
    return state


def momentum(link, lr=0.01):
    optimizer = chainer.optimizers.MomentumSGD(lr=lr)
    optimizer.setup(link)
    return optimizer


def sequential(**links):
    """A Chain of links that are called by name."""
    model = chainer.Chain()
    with model.init_scope():
        for name, link in links.items():
            setattr(model, name, link)
    return model


# --- adversaries -----------------------------------------------------------------------------------------------------


def generator():
    return chainer.Sequential(
        L.Linear(6, 4 * 4 * 4), L.BatchNormalization(64), F.relu, lambda h: F.reshape(h, (len(h), 4, 4, 4)),
        L.Deconvolution2D(4, 3, 4, 2, 1), F.tanh)


def discriminator(normalised=True):
    return chainer.Sequential(
        L.Convolution2D(3, 4, 3, 1, 1), F.leaky_relu, lambda h: F.dropout(h, 0.2), L.Convolution2D(4, 6, 4, 2, 1),
        *([L.BatchNormalization(6)] if normalised else []), F.leaky_relu, L.Linear(6 * 4 * 4, 1))


class AdversarialUpdater(training.updaters.StandardUpdater):
    """Both losses go backward over one graph, and the judge's parameters change in between."""

    def __init__(self, *args, generator, judge, seen, **kwargs):
        self.generator, self.judge, self.seen = generator, judge, seen
        super().__init__(*args, **kwargs)

    def update_core(self):
        real = chainer.Variable(self.converter(self.get_iterator('main').next(), self.device))
        z = np.random.uniform(-1, 1, (len(real), 6)).astype(np.float32)
        fake = self.generator(z)
        y_real, y_fake = self.judge(real), self.judge(fake)
        loss_judge = F.sum(F.softplus(-y_real)) / len(real) + F.sum(F.softplus(y_fake)) / len(real)
        loss_generator = F.sum(F.softplus(-y_fake)) / len(real)
        for link, loss in ((self.judge, loss_judge), (self.generator, loss_generator)):
            self.generator.cleargrads()
            self.judge.cleargrads()
            loss.backward()
            self.get_optimizer(link.name).update()
            self.seen.append((loss.array.copy(), state_of(self.generator, self.judge)))
        self.seen.append(fake.array.copy())


def dcgan():
    """DCGAN in a Trainer; upstream's example, where one graph is run backward twice."""
    both, seen = {'generator': generator(), 'judge': discriminator()}, []
    optimizers = {}
    for name, link in both.items():
        link.name = name
        optimizers[name] = chainer.optimizers.Adam(alpha=0.01, beta1=0.5).setup(link)
    data = chainer.iterators.SerialIterator(list(images(0, size=12)), 4, shuffle=True)
    updater = AdversarialUpdater(data, optimizers, seen=seen, **both)
    for _ in range(4):
        updater.update()
    data.finalize()
    return seen


def penalised():
    """WGAN-GP: the gradient of the judge with respect to its input is part of its loss."""
    makes, judges, seen = generator(), discriminator(normalised=False), []
    optimizers = [chainer.optimizers.Adam(alpha=0.01).setup(each) for each in (makes, judges)]
    for number in range(4):
        real = images(number)
        z = np.random.uniform(-1, 1, (4, 6)).astype(np.float32)
        for _ in range(2):
            fake = makes(z)
            fake.unchain_backward()
            mixed = 0.3 * real + 0.7 * fake
            gradient, = chainer.grad([judges(mixed)], [mixed], enable_double_backprop=True)
            norm = F.sqrt(F.batch_l2_norm_squared(gradient) + 1e-6)
            penalty = 10 * F.mean_squared_error(norm, np.ones(4, np.float32))
            loss = F.mean(judges(fake)) - F.mean(judges(real)) + penalty
            judges.cleargrads()
            loss.backward()
            optimizers[1].update()
            seen.append((loss.array.copy(), gradient.array.copy(), state_of(judges)))
        loss = -F.mean(judges(makes(z)))
        makes.cleargrads()
        loss.backward()
        optimizers[0].update()
        seen.append((loss.array.copy(), state_of(makes)))
    return seen


# --- sequences -------------------------------------------------------------------------------------------------------


def language_model():
    """LSTM with truncated backprop: its state is carried on, its graph is not."""
    model, seen = sequential(embed=L.EmbedID(11, 8), first=L.LSTM(8, 8), second=L.LSTM(8, 8), out=L.Linear(8, 11)), []
    optimizer = momentum(model)
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(1.0))
    loss = 0
    for number in range(16):
        words = labels(number, 5, 11)
        h = F.dropout(model.first(F.dropout(model.embed(words), 0.3)), 0.3)
        loss += F.softmax_cross_entropy(model.out(model.second(h)), labels(number + 1, 5, 11))
        if number % 4 == 3:
            model.cleargrads()
            loss.backward()
            loss.unchain_backward()
            optimizer.update()
            seen.append((loss.array.copy(), model.second.c.array.copy(), state_of(model)))
            loss = 0
        if number == 9:
            with chainer.no_backprop_mode(), chainer.using_config('train', False):
                other = model.copy(mode='copy')
                other.first.reset_state()
                other.second.reset_state()
                seen.append(other.out(other.second(other.first(other.embed(words)))).array.copy())
    return seen


def lengths():
    """Sequences of other lengths in each iteration."""
    model, seen = sequential(embed=L.EmbedID(11, 6), rnn=L.NStepLSTM(2, 6, 8, 0.2), out=L.Linear(8, 5)), []
    optimizer = momentum(model)
    for number in range(6):
        random = np.random.RandomState(number % 4)
        words = [random.randint(0, 11, length).astype(np.int32) for length in sorted(random.randint(1, 6, 4))[::-1]]
        cuts = np.cumsum([len(each) for each in words])[:-1]
        embedded = F.split_axis(model.embed(np.concatenate(words)), cuts, 0)
        h, _, ys = model.rnn(None, None, embedded)
        loss = F.softmax_cross_entropy(model.out(h[-1]), labels(number)) + 0.1 * F.sum(F.concat(ys, axis=0) ** 2)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        seen.append((loss.array.copy(), state_of(model)))
    return seen


def translation():
    """Sequence to sequence: a bidirectional encoder, attention over it at each step, teacher forcing."""
    model, seen = sequential(
        words=L.EmbedID(11, 6, ignore_label=-1), encoder=L.NStepBiGRU(1, 6, 4, 0.1), decoder=L.StatefulGRU(14, 8),
        out=L.Linear(16, 11)), []
    optimizer = chainer.optimizers.Adam(0.01).setup(model)
    for number in range(5):
        random = np.random.RandomState(number)
        sizes = sorted(random.randint(2, 6, 3))[::-1]
        _, encoded = model.encoder(None, [model.words(random.randint(0, 11, size).astype(np.int32)) for size in sizes])
        keys = F.pad_sequence(encoded)
        mask = np.where(np.arange(keys.shape[1]) < np.array(sizes)[:, None], 0, -1e9).astype(np.float32)
        model.decoder.reset_state()
        model.decoder.set_state(F.max(keys, axis=1))
        loss, context = 0, keys[:, 0]
        word = np.zeros(3, np.int32)
        for _ in range(int(random.randint(2, 5))):
            h = model.decoder(F.concat((model.words(word), context), axis=1))
            scores = F.squeeze(F.matmul(keys, F.expand_dims(h, 2)), 2) + mask
            weights = F.softmax(scores)
            context = F.sum(F.scale(keys, weights, axis=0), axis=1)
            word = random.randint(0, 11, 3).astype(np.int32)
            loss += F.softmax_cross_entropy(model.out(F.concat((h, context), axis=1)), word)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        seen.append((loss.array.copy(), weights.array.copy(), state_of(model)))
    return seen


def transformer():
    """An encoder block: many views of few maps, three uses of each."""
    heads, width = 2, 8
    model, seen = sequential(
        embed=L.EmbedID(11, width), qkv=L.Linear(width, 3 * width), out=L.Linear(width, width),
        first=L.LayerNormalization(width), second=L.LayerNormalization(width), wide=L.Linear(width, 16),
        narrow=L.Linear(16, width), top=L.Linear(width, 5)), []
    optimizer = chainer.optimizers.AdaBound(0.01).setup(model)
    for number in range(4):
        words = labels(number, 3 * 6, 11).reshape(3, 6)
        h = model.embed(words)
        parts = F.split_axis(model.qkv(h, n_batch_axes=2), 3, axis=2)
        q, k, v = (F.transpose(F.reshape(each, (3, 6, heads, width // heads)), (0, 2, 1, 3)) for each in parts)
        weights = F.dropout(F.softmax(F.matmul(q, k, transb=True) / 2, axis=3), 0.1)
        mixed = F.reshape(F.transpose(F.matmul(weights, v), (0, 2, 1, 3)), (18, width))
        h = model.first(F.reshape(h, (18, width)) + F.dropout(model.out(mixed), 0.1))
        h = model.second(h + model.narrow(F.elu(model.wide(h))))
        loss = F.softmax_cross_entropy(model.top(F.mean(F.reshape(h, (3, 6, width)), axis=1)), labels(number, 3))
        model.cleargrads()
        loss.backward()
        optimizer.update()
        seen.append((loss.array.copy(), weights.array.copy(), state_of(model)))
    return seen


# --- images ----------------------------------------------------------------------------------------------------------


def u_net():
    """Skip connections over the whole depth; the first maps are used last."""
    model, seen = sequential(
        down0=L.Convolution2D(3, 4, 3, pad=1), norm0=L.BatchNormalization(4), down1=L.Convolution2D(4, 6, 3, pad=1),
        deep=L.Convolution2D(6, 8, 3, pad=1), up1=L.Deconvolution2D(8, 6, 2, 2), join1=L.Convolution2D(12, 6, 3, pad=1),
        up0=L.Deconvolution2D(6, 4, 2, 2), join0=L.Convolution2D(8, 3, 3, pad=1)), []
    optimizer = momentum(model)
    for number in range(4):
        first = F.relu(model.norm0(model.down0(images(number))))
        second = F.relu(model.down1(F.max_pooling_2d(first, 2)))
        h = F.dropout(F.relu(model.deep(F.max_pooling_2d(second, 2))), 0.3)
        h = F.relu(model.join1(F.concat((model.up1(h), second))))
        h = model.join0(F.concat((model.up0(h), first)))
        loss = F.softmax_cross_entropy(h, labels(number, 4 * 64, 3).reshape(4, 8, 8))
        model.cleargrads()
        loss.backward()
        optimizer.update()
        seen.append((loss.array.copy(), state_of(model)))
    return seen


def autoencoder():
    """A variational autoencoder: a draw from a distribution inside of the graph."""
    model, seen = sequential(encode=L.Linear(48, 16), mean=L.Linear(16, 4), spread=L.Linear(16, 4), decode0=L.Linear(
        4, 16), decode1=L.Linear(16, 48)), []
    optimizer = chainer.optimizers.Adam(0.01).setup(model)
    for number in range(4):
        x = (images(number, 6, 3, 4).reshape(6, 48) > 0).astype(np.float32)
        h = F.tanh(model.encode(x))
        mean, spread = model.mean(h), model.spread(h)
        loss = F.gaussian_kl_divergence(mean, spread) / 6
        for _ in range(2):
            y = model.decode1(F.tanh(model.decode0(F.gaussian(mean, spread))))
            loss += F.bernoulli_nll(x, y) / 12
        posterior = chainer.distributions.Normal(mean, log_scale=0.5 * spread)
        loss += 0.01 * F.mean(posterior.sample()[0] ** 2)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        seen.append((loss.array.copy(), mean.array.copy(), state_of(model)))
    return seen


def classifier():
    return chainer.Sequential(
        L.Convolution2D(3, 6, 3, pad=1), L.BatchNormalization(6), F.relu, lambda h: F.max_pooling_2d(h, 2),
        lambda h: F.local_response_normalization(h), lambda h: F.dropout(h, 0.3), L.Linear(6 * 4 * 4, 5))


def looked_at():
    """Grad-CAM: a map in the middle and its gradient are read after backward; a hook times every function."""
    body, top, seen = chainer.Sequential(*list(classifier())[:4]), L.Linear(6 * 4 * 4, 5), []
    optimizers = [momentum(each) for each in (body, top)]
    for number in range(4):
        with chainer.function_hooks.TimerHook() as timer:
            maps = body(images(number))
            y = top(F.dropout(F.relu(maps), 0.2))
            loss = F.softmax_cross_entropy(y, labels(number))
            body.cleargrads()
            top.cleargrads()
            loss.backward(retain_grad=True)
        weights = maps.grad.mean(axis=(2, 3), keepdims=True)
        seen.append((np.maximum((weights * maps.array).sum(axis=1), 0), y.grad.copy(), y.array.copy()))
        seen.append(sorted(timer.summary()))
        for optimizer in optimizers:
            optimizer.update()
        seen.append(state_of(body, top))
    return seen


def evaluated():
    """A Trainer that evaluates and takes a snapshot in the middle of each epoch, and is resumed from one."""
    def trainer(model):
        optimizer = momentum(model)
        train = chainer.iterators.SerialIterator(
            list(zip(images(0, 12), labels(0, 12), strict=True)), 4, shuffle=True)
        test = chainer.iterators.SerialIterator(
            list(zip(images(1, 6), labels(1, 6), strict=True)), 4, repeat=False, shuffle=False)
        made = training.Trainer(training.updaters.StandardUpdater(train, optimizer), (1, 'epoch'), out='/nonexistent')
        made.extend(extensions.Evaluator(test, model), trigger=(2, 'iteration'))
        return made, (train, test)

    seen, saved = [], io.BytesIO()
    model = L.Classifier(classifier())
    first, iterators = trainer(model)
    for number in range(6):
        first.updater.update()
        if number % 2:
            seen.append({name: float(value) for name, value in first.get_extension('validation')(first).items()})
        if number == 3:
            chainer.serializers.save_npz(saved, model)
    seen.append(state_of(model))
    other = L.Classifier(classifier())
    chainer.serializers.load_npz(io.BytesIO(saved.getvalue()), other)
    second, more = trainer(other)
    for _ in range(3):
        second.updater.update()
    for each in (*iterators, *more):
        each.finalize()
    return seen, state_of(other)


def forgetful():
    """F.forget within: Chainer's own recomputation, whose functions run in backward."""
    model, seen = sequential(
        first=L.Convolution2D(3, 4, 3, pad=1), norm=L.BatchNormalization(4), second=L.Convolution2D(4, 4, 3, pad=1),
        out=L.Linear(4 * 8 * 8, 5)), []
    optimizer = momentum(model)
    for number in range(4):
        h = F.forget(lambda x: F.relu(model.norm(model.first(x))), images(number))
        h = F.forget(lambda x, y: F.sigmoid(model.second(x)) * y + x, h, F.tanh(h))
        loss = F.softmax_cross_entropy(model.out(F.dropout(h, 0.1)), labels(number))
        model.cleargrads()
        loss.backward()
        optimizer.update()
        seen.append((loss.array.copy(), state_of(model)))
    return seen


def mixed_precision():
    """mixed16: half precision maps, single precision parameters, and a scaled loss."""
    with chainer.using_config('dtype', chainer.mixed16):
        model, seen = classifier(), []
        optimizer = momentum(model)
        optimizer.use_fp32_update()
        optimizer.loss_scaling(scale=64.0)
        for number in range(4):
            x, t = images(number).astype(np.float16), labels(number)
            optimizer.update(lambda x, t: F.softmax_cross_entropy(model(x), t), x, t)
            seen.append(state_of(model))
    return seen


def clipped():
    """Gradients accumulated over batches of several sizes, summed losses, weight decay, then one update."""
    model, seen = classifier(), []
    optimizer = momentum(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.01))
    for number in range(4):
        model.cleargrads()
        for part in range(3):
            loss = F.softmax_cross_entropy(model(images(part, 2 + part)), labels(part, 2 + part)) / 3
            loss.backward()
        optimizer.update()
        seen.append((number, loss.array.copy(), state_of(model)))
    return seen


PROGRAMS = {each.__name__: each for each in (
    dcgan, penalised, language_model, lengths, translation, transformer, u_net, autoencoder, looked_at, evaluated,
    forgetful, mixed_precision, clipped)}
