"""Poolings of all kinds: arrays with values that are hard to order or to sum, windows, strides and pads."""
import numpy as np
from hypothesis import strategies as st

# Ties, both zeros, infinities and NaN: everything that an order of comparisons or sums may bring out.
ODD = np.array([0.0, -0.0, 1.0, 1.0, -1.0, 2.5, np.inf, -np.inf, np.nan])
TIES = ODD[:6]
TAME = np.array([0.0, -0.0, -0.0, -0.0, 1.0, -1.0, 0.1, 1e-3, 3e3])
ONE_TO_THREE_AXES = st.integers(1, 3)


@st.composite
def poolings(draw, axes=ONE_TO_THREE_AXES, dtypes='efd', values=(ODD, TIES, TAME, None)):
    """An array of some values (None: of the normal distribution), window, stride and pad."""
    ndim = draw(axes)
    kernel, stride, pad = (
        tuple(draw(st.integers(low, high)) for _ in range(ndim)) for low, high in ((1, 4), (1, 3), (0, 3)))
    size = tuple(max(1, k - 2 * p) + draw(st.integers(0, 4)) for k, p in zip(kernel, pad, strict=True))
    if draw(st.booleans()):  # one window an image: NumPy sums that in another order
        kernel, pad = size, (0,) * ndim
    random = np.random.default_rng(draw(st.integers(0, 99)))
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 9)), *size)
    chosen = draw(st.sampled_from(values))
    x = random.standard_normal(shape) if chosen is None else random.choice(chosen, shape)
    x = x.astype(draw(st.sampled_from(dtypes)))
    return (np.ascontiguousarray(x.T).T if draw(st.booleans()) else x), kernel, stride, pad
