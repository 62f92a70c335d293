"""The list of packages, which setup.cfg cannot state: `find:` does not see that patches/ ships as a package."""
from setuptools import find_packages, setup

setup(packages=[*find_packages(include=['chainer_ooc', 'chainer_ooc.*']), 'chainer_ooc.patches'])
