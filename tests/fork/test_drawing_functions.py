"""Which of Chainer's functions draw random numbers where their inputs are: on a GPU these never run again."""
import ast
import importlib.util
from pathlib import Path

from chainer_ooc.execute.functions import prototype


def sources():
    folder = Path(importlib.util.find_spec('chainer').origin).parent / 'functions'
    for path in sorted(folder.rglob('*.py')):
        yield 'chainer.functions.' + '.'.join(path.relative_to(folder).with_suffix('').parts), path.read_text('utf-8')


def draws(text):
    """Whether a function node in a source reads an attribute ``random``, or calls a sampler that it was given."""
    nodes = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ClassDef)]
    return any(isinstance(part, ast.Attribute) and part.attr in ('random', 'sampler')
               for node in nodes for part in ast.walk(node))


def test_the_functions_that_draw_are_those_that_never_run_again_on_a_device():
    found = {name for name, text in sources() if draws(text)}
    assert found == prototype._DRAWING_MODULES
