"""Which of Chainer's functions draw random numbers where their inputs are, and which write to arrays that they hide."""
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


def writes_to_what_it_hides(text):
    """Whether a backward method in a source changes an attribute of its function's in place."""
    def is_own(target):
        while isinstance(target, ast.Subscript):
            target = target.value
        return isinstance(target, ast.Attribute) and ast.unparse(target.value) == 'self'

    methods = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)]
    parts = [part for method in methods if 'backward' in method.name for part in ast.walk(method)]
    return any(isinstance(part, ast.AugAssign) and is_own(part.target) for part in parts) or any(
        isinstance(target, ast.Subscript) and is_own(target)
        for part in parts if isinstance(part, ast.Assign) for target in part.targets)


def test_the_functions_that_write_to_what_they_hide_are_those_that_are_looked_at_after_each_step():
    found = {name for name, text in sources() if writes_to_what_it_hides(text)}
    assert found == prototype._WRITING_MODULES
