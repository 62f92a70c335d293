"""What setup.cfg cannot state: `find:` does not see that patches/ ships as a package, and some sources are C."""
from setuptools import Extension, find_packages, setup

# Optional: without a compiler the host keeps fewer pages and is slower, NumPy computes batch normalization, and plans
# take longer. Fused products would make bits depend on the processor.
ARENA = Extension('chainer_ooc.backends.host._arena',
                  [f'chainer_ooc/backends/host/{name}.c' for name in ('_arena', '_contained', '_file_backed')],
                  depends=['chainer_ooc/backends/host/_arena.h'], optional=True)
BATCH_NORM = Extension('chainer_ooc.kernels.onednn._batch_norm', ['chainer_ooc/kernels/onednn/_batch_norm.c'],
                       extra_compile_args=['-O3', '-fopenmp', '-ffp-contract=off'], extra_link_args=['-fopenmp'],
                       optional=True)
TIMELINE = Extension('chainer_ooc.simulate.native._timeline',
                     [f'chainer_ooc/simulate/native/{name}.c' for name in ('evaluate', 'schedule', 'simulator')],
                     depends=['chainer_ooc/simulate/native/timeline.h'], extra_compile_args=['-ffp-contract=off'],
                     optional=True)

setup(packages=[*find_packages(include=['chainer_ooc', 'chainer_ooc.*']), 'chainer_ooc.patches'],
      ext_modules=[ARENA, BATCH_NORM, TIMELINE])
