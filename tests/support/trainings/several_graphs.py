"""Updaters whose iterations have several graphs, or one that runs backward twice: GANs, and gradients of gradients."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

IMAGES = 128


class Adversarial(chainer.training.updaters.StandardUpdater):
    """A generator and a judge of 64 numbers, each with an optimizer."""

    def update_core(self):
        real = np.asarray(self.converter(self.get_iterator('main').next(), self.device))
        noise = np.random.RandomState(self.iteration).uniform(-1, 1, (len(real), 16)).astype(np.float32)
        self.learn(real, noise, *[self.get_optimizer(name).target for name in ('generator', 'judge')])

    def descend(self, name, loss):
        optimizer = self.get_optimizer(name)
        optimizer.target.cleargrads()
        loss.backward()
        optimizer.update()


class InTurn(Adversarial):
    """Two updates, each with a graph of its own."""

    def learn(self, real, noise, generator, judge):
        self.descend('generator', F.mean(F.softplus(-judge(generator(noise)))))
        with chainer.no_backprop_mode():
            fake = generator(noise).array
        self.descend('judge', F.mean(F.softplus(-judge(real))) + F.mean(F.softplus(judge(fake))))


class Shared(Adversarial):
    """Two updates, and both run backward over one graph, as in upstream's example."""

    def learn(self, real, noise, generator, judge):
        of_real, of_fake = judge(real), judge(generator(noise))
        losses = F.mean(F.softplus(-of_real)) + F.mean(F.softplus(of_fake)), F.mean(F.softplus(-of_fake))
        for name, loss in zip(('judge', 'generator'), losses, strict=True):
            self.descend(name, loss)


class Penalised(Adversarial):
    """WGAN-GP: the judge's loss has the gradient of what it says with respect to its input, twice an iteration."""

    def learn(self, real, noise, generator, judge):
        for _ in range(2):
            fake = generator(noise)
            fake.unchain_backward()
            mixed = 0.3 * real + 0.7 * fake
            gradient, = chainer.grad([judge(mixed)], [mixed], enable_double_backprop=True)
            norm = F.sqrt(F.batch_l2_norm_squared(gradient) + 1e-6)
            penalty = 10 * F.mean_squared_error(norm, np.ones(len(real), np.float32))
            self.descend('judge', F.mean(judge(fake)) - F.mean(judge(real)) + penalty)
        self.descend('generator', -F.mean(judge(generator(noise))))


class Sloped(Adversarial):
    """One network, and double backprop."""

    def learn(self, real, noise, generator, judge):
        x = chainer.Variable(real)
        told = judge(x)
        gradient, = chainer.grad([F.sum(told)], [x], enable_double_backprop=True)
        self.descend('judge', F.mean(told) + F.mean(gradient ** 2))


def updater_of(kind, optimizer=chainer.optimizers.Adam):
    """A new training of one of these classes."""
    np.random.seed(0)
    images = chainer.iterators.SerialIterator(list(np.random.rand(2 * IMAGES, 64).astype('f')), IMAGES, shuffle=False)
    generator = chainer.Sequential(L.Linear(16, 256), F.relu, L.Linear(256, 64), F.tanh)
    judge = chainer.Sequential(L.Linear(64, 256), F.leaky_relu, L.Linear(256, 128), F.leaky_relu, L.Linear(128, 1))
    return kind(images, {'generator': optimizer().setup(generator), 'judge': optimizer().setup(judge)})
