"""What setup.cfg cannot state: `find:` does not see that patches/ ships as a package, and some sources are C."""
from setuptools import Extension, find_packages, setup

ARENA = Extension('chainer_ooc.backends.host._arena', ['chainer_ooc/backends/host/_arena.c'],
                  optional=True)  # without a compiler the host keeps fewer pages, and is slower

TIMELINE = Extension('chainer_ooc.simulate.native._timeline',
                     [f'chainer_ooc/simulate/native/{name}.c' for name in ('evaluate', 'schedule', 'simulator')],
                     depends=['chainer_ooc/simulate/native/timeline.h'],
                     extra_compile_args=['-ffp-contract=off'],  # the same bits as in Python
                     optional=True)  # without a compiler, planning takes longer

setup(packages=[*find_packages(include=['chainer_ooc', 'chainer_ooc.*']), 'chainer_ooc.patches'],
      ext_modules=[ARENA, TIMELINE])
