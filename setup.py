"""What setup.cfg cannot state: `find:` does not see that patches/ ships as a package, and one source is C."""
from setuptools import Extension, find_packages, setup

ARENA = Extension('chainer_ooc.backends.host._arena', ['chainer_ooc/backends/host/_arena.c'],
                  optional=True)  # without a compiler the host keeps fewer pages, and is slower

setup(packages=[*find_packages(include=['chainer_ooc', 'chainer_ooc.*']), 'chainer_ooc.patches'], ext_modules=[ARENA])
