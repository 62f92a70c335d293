"""The user guide says what the code does: entries and their defaults, attributes, errors, commands, policies."""
import dataclasses
import re
from pathlib import Path

import chainer_ooc  # noqa: F401  before chainer

# isort: split
import chainer
import pytest

from chainer_ooc import cli, errors
from chainer_ooc.execute.tally import IterationStats
from chainer_ooc.trace import ArrayForm
from support.command_line import run_json
from support.planning.drawn_trace import MB, TRACE

GUIDE = (Path(__file__).resolve().parent.parent / 'docs' / 'guide.md').read_text(encoding='utf-8')
ENTRIES = {name: value for name, value in vars(chainer.global_config).items() if name.startswith('ooc')}


def rows():
    """Cells of all table rows."""
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in GUIDE.splitlines() if line[:1] == '|']


@pytest.mark.parametrize('name', ENTRIES)
def test_the_guide_has_each_entry_with_its_default(name):
    assert [row[1] for row in rows() if row[0] == f'`{name}`'] == [f'`{ENTRIES[name]!r}`']


def test_the_guide_has_no_entry_that_is_not_there():
    named = {row[0].strip('`') for row in rows() if row[0].startswith('`ooc')}
    assert named == set(ENTRIES)


def test_the_guide_has_each_attribute_of_stats():
    named = {name for row in rows() for name in re.findall(r'`(\w+)`', row[0])}
    assert {field.name for field in dataclasses.fields(IterationStats)} <= named


def test_the_guide_has_each_error_with_the_built_in_that_it_is():
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, errors.OocError) and error is not errors.OocError:
            assert f'| `{error.__name__}` (`{error.__bases__[1].__name__}`) |' in GUIDE


@pytest.mark.parametrize('name', cli.COMMANDS)
def test_the_guide_has_each_command(name):
    assert f'\n### `{name}' in GUIDE


def section(command):
    """What the guide says about a command."""
    begin = GUIDE.index(f'\n### `{command}')
    return GUIDE[begin:GUIDE.index('\n### `', begin + 1)]


@pytest.mark.parametrize(('command', 'options', 'rows'), [
    ('simulate', ('--policy', 'swap-all', '--budget', '9MB', '--ranks', '2', '--network', '1MB'), 'across'),
    ('plan', ('--policy', 'swap-all', '--budget', '9MB'), None),
    ('compare', ('--policies', 'keep,swap-all', '--budgets', '9MB'), 'rows'),
    ('explain', ('--policy', 'swap-all', '--budget', '9MB'), 'maps')])
def test_the_guide_has_each_key_of_what_a_command_prints_as_json(capsys, tmp_path, command, options, rows):
    forms = ArrayForm('|u1', (8, 5)), ArrayForm('<f4', (MB // 4,))
    calls = tuple(dataclasses.replace(each, inputs=(*each.inputs, -1), arguments=forms) for each in TRACE.calls)
    (tmp_path / 'trace.json').write_text(dataclasses.replace(TRACE, calls=calls).to_json())
    found = run_json(capsys, command, str(tmp_path / 'trace.json'), *options)
    keys = {*found, *(found[rows][0] if isinstance(found.get(rows), list) else found.get(rows, ()))}
    assert {key for key in keys if f'`{key}`' not in section(command)} == set()


COMMAND_LINES = re.findall(r'^python -m chainer_ooc (.+)$', GUIDE, re.MULTILINE)


@pytest.mark.parametrize('line', COMMAND_LINES)
def test_the_commands_in_the_guide_can_be_written_so(line):
    cli._parser()[0].parse_args(line.split())


def test_the_guide_writes_each_command_that_takes_arguments():
    assert {line.split()[0] for line in COMMAND_LINES} >= {
        'profile', 'simulate', 'plan', 'compare', 'explain', 'recommend'}
