"""Functions and links with state, random numbers, retained outputs and hidden arrays, as networks use them."""
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from support.usage.usage_programs import Convolutions, images, learn, program, setup, vectors


def run_network(run, model, loss_of, count=4, optimizer=None):
    """Trains a model whose loss of the batch of a number is `loss_of(number)`."""
    optimizer = setup(model, optimizer)
    for number in range(count):
        learn(run, model, optimizer, loss_of(number))


def on_vectors(run, model, batch=512, size=32, **arguments):
    def loss_of(number):
        x, t = vectors(number, batch, size)
        return F.softmax_cross_entropy(model(x), t)
    run_network(run, model, loss_of, **arguments)


def on_images(run, model, batch=16, **arguments):
    def loss_of(number):
        x, t = images(number, batch)
        return F.softmax_cross_entropy(model(x), t)
    run_network(run, model, loss_of, **arguments)


@program
def dropout(run):
    on_vectors(run, chainer.Sequential(
        L.Linear(32, 96), F.relu, F.dropout, L.Linear(96, 96), F.relu, lambda h: F.dropout(h, 0.2), L.Linear(96, 10)))


@program
def noise_layers(run):
    """Gaussian noise, zoneout, random rectifiers and droppath-like masks, all from numpy's stream."""
    class Noisy(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.l1, self.l2, self.l3 = L.Linear(32, 64), L.Linear(64, 64), L.Linear(64, 10)

        def forward(self, x):
            h = self.l1(x)
            h = F.gaussian(h, np.full(h.shape, -2, np.float32))
            h = F.zoneout(F.tanh(self.l2(h)), h, 0.3)
            return self.l3(F.rrelu(h))
    on_vectors(run, Noisy())


@program
def variational_autoencoder(run):
    class Autoencoder(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.e1, self.mean, self.variance = L.Linear(32, 96), L.Linear(96, 16), L.Linear(96, 16)
                self.d1, self.d2 = L.Linear(16, 96), L.Linear(96, 32)
    model = Autoencoder()

    def loss_of(number):
        x = (vectors(number)[0] + 1) / 2
        h = F.tanh(model.e1(x))
        mean, variance = model.mean(h), model.variance(h)
        loss = F.gaussian_kl_divergence(mean, variance) / len(x)
        for _ in range(2):
            z = F.gaussian(mean, variance)
            y = model.d2(F.tanh(model.d1(z)))
            loss += F.bernoulli_nll(x, y) / (2 * len(x))
        return loss
    run_network(run, model, loss_of, optimizer=chainer.optimizers.Adam())


@program
def fixed_batch_normalization(run):
    """Fine-tuning: statistics of the first half of training are fixed in the second."""
    model = Convolutions()
    optimizer = setup(model)
    for number in range(6):
        x, t = images(number)
        with chainer.using_config('train', number < 3):
            learn(run, model, optimizer, F.softmax_cross_entropy(model(x), t))


@program
def finetuned_batch_normalization(run):
    model = Convolutions()
    optimizer = setup(model)
    model.n1.start_finetuning()
    for number in range(4):
        x, t = images(number)
        h = F.max_pooling_2d(F.relu(model.n1(model.c1(x), finetune=True)), 2)
        h = F.average_pooling_2d(F.relu(model.n2(model.c2(h))), 2)
        learn(run, model, optimizer, F.softmax_cross_entropy(model.fc(h), t))
        run.note('count', model.n1.N)


@program
def other_normalizations(run):
    class Normalized(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.c1, self.g1 = L.Convolution2D(3, 8, 3, pad=1), L.GroupNormalization(4)
                self.c2, self.r2 = L.Convolution2D(8, 8, 3, pad=1), L.BatchRenormalization(8)
                self.l3, self.n3 = L.Linear(None, 64), L.LayerNormalization(64)
                self.l4 = L.Linear(64, 10)

        def forward(self, x):
            h = F.relu(self.g1(self.c1(x)))
            h = F.relu(self.r2(self.c2(h)))
            h = F.local_response_normalization(h)
            h = F.relu(self.n3(self.l3(F.max_pooling_2d(h, 2))))
            return self.l4(F.normalize(h))
    on_images(run, Normalized())


class Residual(chainer.Chain):
    def __init__(self, channels, dilate):
        super().__init__()
        with self.init_scope():
            self.c1 = L.DilatedConvolution2D(channels, channels, 3, pad=dilate, dilate=dilate, nobias=True)
            self.n1 = L.BatchNormalization(channels)
            self.c2 = L.DepthwiseConvolution2D(channels, 1, 3, pad=1, nobias=True)
            self.n2 = L.BatchNormalization(channels)

    def forward(self, x):
        return F.relu(x + self.n2(self.c2(F.relu(self.n1(self.c1(x))))))


@program
def residual_blocks(run):
    on_images(run, chainer.Sequential(
        L.Convolution2D(3, 8, 3, pad=1), Residual(8, 1), Residual(8, 2), lambda h: F.max_pooling_2d(h, 3, 2),
        Residual(8, 1), lambda h: F.mean(h, axis=(2, 3)), L.Linear(8, 10)))


@program
def densely_connected(run):
    """Concatenations of all maps before, each read many times."""
    class Dense(chainer.ChainList):
        def forward(self, x):
            maps = [F.relu(self[0](x))]
            for layer in self[1:-1]:
                maps.append(F.relu(layer(F.concat(maps))))
            return self[-1](F.average_pooling_2d(F.concat(maps), 4))
    on_images(run, Dense(*[L.Convolution2D(channels, 4, 3, pad=1) for channels in (3, 4, 8, 12)], L.Linear(None, 10)))


@program
def encoder_and_decoder_with_skips(run):
    """A U-Net: deconvolution, unpooling, concatenated skips, a loss for each pixel."""
    class UNet(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.c1, self.c2 = L.Convolution2D(3, 8, 3, pad=1), L.Convolution2D(8, 16, 3, pad=1)
                self.d2 = L.Deconvolution2D(16, 8, 2, stride=2)
                self.d1 = L.Convolution2D(16, 4, 3, pad=1)
                self.up = L.Convolution2D(4, 10, 1)

        def forward(self, x):
            a = F.elu(self.c1(x))
            b = F.elu(self.c2(F.max_pooling_2d(a, 2)))
            c = F.concat((self.d2(b), a))
            small = F.max_pooling_2d(F.elu(self.d1(c)), 2)
            return self.up(F.unpooling_2d(small, 2, outsize=a.shape[2:]))
    model = UNet()

    def loss_of(number):
        x, _ = images(number)
        t = np.random.RandomState(number).randint(-1, 10, (16, 16, 16)).astype(np.int32)
        return F.softmax_cross_entropy(model(x), t)
    run_network(run, model, loss_of)


@program
def inception_of_several_poolings(run):
    class Inception(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.a, self.b = L.Convolution2D(3, 4, 1), L.Convolution2D(3, 4, 3, pad=1)
                self.c, self.d = L.Convolution2D(3, 4, 5, pad=2), L.Convolution2D(3, 4, 1)
                self.out = L.Linear(None, 10)

        def forward(self, x):
            h = F.concat((F.relu(self.a(x)), F.relu(self.b(x)), F.clipped_relu(self.c(x)),
                          F.hard_sigmoid(self.d(F.max_pooling_2d(x, 3, stride=1, pad=1)))))
            return self.out(F.spatial_pyramid_pooling_2d(h, 3, 'max'))
    on_images(run, Inception())


@program
def maxout(run):
    on_vectors(run, chainer.Sequential(L.Maxout(32, 48, 3), L.Maxout(48, 48, 2), L.Linear(48, 10)))


@program
def activations(run):
    class Activations(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.l1, self.p, self.s = L.Linear(32, 64), L.PReLU(), L.Swish((64,))
                self.h, self.o = L.Highway(64), L.Linear(64, 10)

        def forward(self, x):
            h = self.s(self.p(self.l1(x)))
            h = self.h(F.selu(h)) + F.softplus(h) * F.sigmoid(h)
            return self.o(F.log_softmax(F.crelu(h)[:, :64]))
    on_vectors(run, Activations())


@program
def attention(run):
    """Two heads over 32 words: the largest maps are those of the weights."""
    class Attention(chainer.Chain):
        def __init__(self, units=32):
            super().__init__()
            with self.init_scope():
                self.q, self.k, self.v = (L.Linear(units, units, nobias=True) for _ in range(3))
                self.n, self.o = L.LayerNormalization(units), L.Linear(units, 10)

        def heads(self, h, batch):
            return F.reshape(F.transpose(F.reshape(h, (batch, 32, 2, 16)), (0, 2, 1, 3)), (2 * batch, 32, 16))

        def forward(self, x):
            batch = len(x)
            flat = F.reshape(x, (batch * 32, 32))
            q, k, v = (self.heads(each(flat), batch) for each in (self.q, self.k, self.v))
            weights = F.softmax(F.matmul(q, k, transb=True) * np.float32(0.25), axis=2)
            context = F.matmul(F.dropout(weights, 0.1), v)
            context = F.transpose(F.reshape(context, (batch, 2, 32, 16)), (0, 2, 1, 3))
            h = self.n(flat + F.reshape(context, (batch * 32, 32)))
            return self.o(F.mean(F.reshape(h, (batch, 32, 32)), axis=1))
    model = Attention()

    def loss_of(number):
        x, t = vectors(number, 16, 32 * 32)
        return F.softmax_cross_entropy(model(x.reshape(16, 32, 32)), t)
    run_network(run, model, loss_of, optimizer=chainer.optimizers.Adam())


@program
def stateful_lstm(run):
    """A sentence in one graph, then `reset_state`."""
    class Reader(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.e, self.l, self.o = L.EmbedID(50, 32), L.LSTM(32, 48), L.Linear(48, 50)
    model = Reader()

    def loss_of(number):
        words = np.random.RandomState(number).randint(0, 50, (7, 64)).astype(np.int32)
        model.l.reset_state()
        return sum(F.softmax_cross_entropy(model.o(F.dropout(model.l(model.e(words[step])))), words[step + 1])
                   for step in range(6))
    run_network(run, model, loss_of)


@program
def gated_units_and_peepholes(run):
    class Gated(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.g, self.p = L.StatefulGRU(32, 48), L.StatefulPeepholeLSTM(48, 32)
                self.z, self.o = L.StatefulZoneoutLSTM(32, 32), L.Linear(32, 10)

        def forward(self, xs):
            for link in (self.g, self.p, self.z):
                link.reset_state()
            for x in xs:
                h = self.z(self.p(self.g(x)))
            return self.o(h)
    model = Gated()

    def loss_of(number):
        x, t = vectors(number, 128)
        return F.softmax_cross_entropy(model([np.roll(x, step, axis=0) for step in range(3)]), t)
    run_network(run, model, loss_of)


@program
def n_step_lstm(run):
    """Sequences of different lengths, sorted and packed by Chainer."""
    class Tagger(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.e, self.l = L.EmbedID(50, 32), L.NStepBiLSTM(1, 32, 32, 0.2)
                self.o = L.Linear(64, 10)
    model = Tagger()

    def loss_of(number):
        stream = np.random.RandomState(number % 2)
        lengths = sorted(stream.randint(3, 8, 40), reverse=True)
        words = [np.random.RandomState(number + count).randint(0, 50, length).astype(np.int32)
                 for count, length in enumerate(lengths)]
        run.graph(f'lengths {number % 2}')
        _, _, hs = model.l(None, None, [model.e(each) for each in words])
        t = np.concatenate(words) % 10
        return F.softmax_cross_entropy(model.o(F.concat(hs, axis=0)), t)
    run_network(run, model, loss_of)


@program
def encoder_and_decoder_of_sequences(run):
    """seq2seq: two n-step LSTMs, the second begins with the state of the first."""
    class Seq2seq(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.ex, self.ey = L.EmbedID(40, 32), L.EmbedID(40, 32)
                self.encoder, self.decoder = L.NStepLSTM(1, 32, 48, 0.1), L.NStepGRU(1, 32, 48, 0.1)
                self.w = L.Linear(48, 40)
    model = Seq2seq()

    def loss_of(number):
        stream = np.random.RandomState(number)
        xs = [stream.randint(0, 40, 9).astype(np.int32) for _ in range(24)]
        ys = [stream.randint(0, 40, 7).astype(np.int32) for _ in range(24)]
        h, _, _ = model.encoder(None, None, [model.ex(x) for x in xs])
        _, outs = model.decoder(h, [model.ey(y) for y in ys])
        loss = F.softmax_cross_entropy(model.w(F.concat(outs, axis=0)), F.concat(ys, axis=0).array, reduce='no')
        return F.sum(loss) / len(xs)
    run_network(run, model, loss_of, optimizer=chainer.optimizers.Adam())


@program
def word_vectors_with_negative_sampling(run):
    """Samples are drawn in forward, from numpy's stream."""
    class SkipGram(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.e = L.EmbedID(200, 64)
                self.loss = L.NegativeSampling(64, np.arange(1, 201), 5)
    model = SkipGram()

    def loss_of(number):
        words = np.random.RandomState(number).randint(0, 200, (2, 256)).astype(np.int32)
        return model.loss(model.e(words[0]), words[1])
    run_network(run, model, loss_of, optimizer=chainer.optimizers.Adam())


@program
def word_vectors_with_hierarchical_softmax(run):
    class ContinuousBag(chainer.Chain):
        def __init__(self):
            super().__init__()
            tree = L.BinaryHierarchicalSoftmax.create_huffman_tree(dict(enumerate(range(1, 101))))
            with self.init_scope():
                self.e = L.EmbedID(100, 64)
                self.loss = L.BinaryHierarchicalSoftmax(64, tree)
    model = ContinuousBag()

    def loss_of(number):
        stream = np.random.RandomState(number)
        context = model.e(stream.randint(0, 100, (64, 4)).astype(np.int32))
        return model.loss(F.sum(context, axis=1) / 4, stream.randint(0, 100, 64).astype(np.int32))
    run_network(run, model, loss_of, 3)


@program
def connectionist_temporal_classification(run):
    model = chainer.Sequential(L.Linear(32, 64), F.relu, L.Linear(64, 11))

    def loss_of(number):
        x, _ = vectors(number, 12 * 32)
        t = np.random.RandomState(number).randint(1, 11, (32, 4)).astype(np.int32)
        outputs = F.separate(F.reshape(model(x), (12, 32, 11)), axis=0)
        return F.connectionist_temporal_classification(outputs, t, 0)
    run_network(run, model, loss_of)


@program
def conditional_random_field(run):
    class Field(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.l1, self.crf = L.Linear(32, 10), L.CRF1d(10)
    model = Field()

    def loss_of(number):
        xs = [F.tanh(model.l1(vectors(10 * number + step, 128)[0])) for step in range(6)]
        ts = [vectors(10 * number + step, 128)[1] for step in range(6)]
        run.note('path', np.array(model.crf.argmax(xs)[1]))
        return model.crf(xs, ts)
    run_network(run, model, loss_of)


@program
def regions_of_interest(run):
    """Few regions: Chainer goes over each pixel of them in Python."""
    class Detector(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.c, self.o = L.Convolution2D(3, 8, 3, pad=1), L.Linear(None, 10)
    model = Detector()

    def loss_of(number):
        stream = np.random.RandomState(number)
        x = stream.uniform(-1, 1, (4, 3, 24, 24)).astype(np.float32)
        corner = stream.randint(0, 12, (16, 2))
        rois = np.hstack([stream.randint(0, 4, (16, 1)), corner, corner + 11]).astype(np.float32)
        h = F.relu(model.c(x))
        pooled = F.roi_pooling_2d(h, rois, 4, 4, 1.0)
        aligned = F.roi_average_align_2d(
            h, rois[:, [2, 1, 4, 3]], rois[:, 0].astype(np.int32), 4, 1.0, sampling_ratio=2)
        t = stream.randint(0, 10, 16).astype(np.int32)
        return F.softmax_cross_entropy(model.o(pooled + aligned), t)
    run_network(run, model, loss_of)


@program
def spatial_transformer(run):
    class Transformer(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.t = L.Linear(3 * 256, 6, initialW=0.001, initial_bias=np.array([1, 0, 0, 0, 1, 0], np.float32))
                self.c, self.o = L.Convolution2D(3, 8, 3), L.Linear(None, 10)

        def forward(self, x):
            grid = F.spatial_transformer_grid(F.reshape(self.t(x), (-1, 2, 3)), (16, 16))
            h = F.spatial_transformer_sampler(chainer.as_variable(x), grid)
            h = F.resize_images(F.relu(self.c(h)), (12, 12))
            return self.o(F.max_pooling_2d(h, 2))
    on_images(run, Transformer())


@program
def reorganised_images(run):
    """Views, pads, flips and pixel shuffles."""
    class Shuffled(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.c, self.d, self.o = L.Convolution2D(3, 12, 3), L.Convolution2D(3, 8, 3), L.Linear(None, 10)

        def forward(self, x):
            h = self.c(F.pad(chainer.as_variable(x), ((0, 0), (0, 0), (1, 1), (1, 1)), 'constant'))
            h = self.d(F.depth2space(F.relu(h), 2))
            h = F.flip(F.swapaxes(h, 2, 3), 3)[:, :, 1:-1:2, ::2]
            a, b = F.split_axis(F.rollaxis(h, 1, 4), 2, axis=3)
            return self.o(F.maximum(a, b) + F.broadcast_to(F.mean(a, axis=(1, 2), keepdims=True), a.shape))
    on_images(run, Shuffled(), batch=8)


@program
def local_and_bilinear_layers(run):
    class Local(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.c = L.LocalConvolution2D(3, 4, (16, 16), 3)
                self.b, self.s = L.Bilinear(32, 32, 16), L.Scale(1, (32,))
                self.l, self.o = L.Linear(None, 32), L.Linear(16, 10)

        def forward(self, x):
            h = self.l(F.relu(self.c(x)))
            return self.o(self.b(self.s(h), F.cos(h)))
    on_images(run, Local(), batch=32)


@program
def volumes(run):
    """Three dimensions: convolution, deconvolution and pooling."""
    class Volumes(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.c, self.d = L.ConvolutionND(3, 1, 4, 3, pad=1), L.DeconvolutionND(3, 4, 4, 2, 2)
                self.o = L.Linear(None, 10)

        def forward(self, x):
            h = F.max_pooling_nd(F.relu(self.c(x)), 2)
            return self.o(F.average_pooling_nd(F.relu(self.d(h)), 4))
    model = Volumes()

    def loss_of(number):
        x, t = vectors(number, 8, 12 * 12 * 12)
        return F.softmax_cross_entropy(model(x.reshape(8, 1, 12, 12, 12)), t)
    run_network(run, model, loss_of)


@program
def tree_of_small_calls(run):
    """Recursion over a tree: many small maps under the threshold, a few above it."""
    class Tree(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.e, self.j, self.o = L.EmbedID(60, 24), L.Linear(48, 24), L.Linear(24, 10)
    model = Tree()

    def fold(words):
        if len(words) == 1:
            return model.e(words)
        half = len(words) // 2
        return F.tanh(model.j(F.concat((fold(words[:half]), fold(words[half:])), axis=1)))

    def loss_of(number):
        words = np.random.RandomState(number).randint(0, 60, 16).astype(np.int32)
        return F.softmax_cross_entropy(model.o(fold(words)), words[:1] % 10)
    run_network(run, model, loss_of)


@program
def metric_and_robust_losses(run):
    model = chainer.Sequential(L.Linear(32, 64), F.tanh, L.Linear(64, 32))

    def loss_of(number):
        x, t = vectors(number, 256)
        y = model(x)
        loss = F.contrastive(y, model(np.flip(x, 0).copy()), (t % 2).astype(np.int32))
        loss += F.mean_absolute_error(y, x) + F.sigmoid_cross_entropy(y, (x > 0).astype(np.int32))
        return loss + F.sum(F.huber_loss(y, x, 0.5)) / 256 + F.hinge(y, t)
    run_network(run, model, loss_of)


@program
def pooling_indices_reused(run):
    """SegNet: the encoder's indices place the decoder's values."""
    class Segmentation(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.c1, self.c2 = L.Convolution2D(3, 8, 3, pad=1), L.Convolution2D(8, 8, 3, pad=1)
                self.d1 = L.Convolution2D(8, 10, 3, pad=1)
    model = Segmentation()

    def loss_of(number):
        x, _ = images(number)
        h, indices = F.max_pooling_2d(F.relu(model.c1(x)), 2, return_indices=True)
        h = F.upsampling_2d(F.relu(model.c2(h)), indices, 2, outsize=(16, 16))
        run.note('indices', indices)
        t = np.random.RandomState(number).randint(0, 10, (16, 16, 16)).astype(np.int32)
        return F.softmax_cross_entropy(model.d1(h), t)
    run_network(run, model, loss_of)


@program
def configuration_differs_between_forward_and_backward(run):
    """Half of forward in test mode, the other in train mode, backward in either."""
    model = chainer.ChainList(L.Linear(32, 96), L.BatchNormalization(96), L.Linear(96, 96), L.BatchNormalization(96),
                              L.Linear(96, 10))
    optimizer = setup(model)
    for number in range(5):
        x, t = vectors(number)
        with chainer.using_config('train', False):
            h = F.dropout(F.rrelu(model[1](model[0](x))), 0.4)
        h = F.dropout(F.rrelu(model[3](model[2](F.tanh(h)))), 0.4)
        loss = F.softmax_cross_entropy(model[4](h), t)
        del h
        with chainer.using_config('train', number % 2 == 0):
            learn(run, model, optimizer, loss)
