"""chainer.config.ooc*: what each entry takes, and what it says to what it does not."""
import chainer_ooc  # before chainer

# isort: split
import contextlib
import dataclasses
import io
import logging
import os
import pathlib

import chainer
import pytest

from chainer_ooc import config
from chainer_ooc.errors import ConfigError

GOOD = {
    'ooc': [None, *chainer_ooc.policies()],
    'ooc_budget': [None, 1, 10**12, '1.5GB', '16 GiB', 2e9],
    'ooc_spill_dir': [None, '/tmp', pathlib.Path('/tmp'), b'/tmp'],
    'ooc_host_limit': [None, 1, '4GB'],
    'ooc_workspace': [None, 1, '64MB'],
    'ooc_min_bytes': [0, 1, '1MB', 10**9],
    'ooc_profile_iterations': [1, 2, 1000],
    'ooc_plan': [None, 'plan.json', '/tmp/plan.json', pathlib.Path('/tmp/plan.json'), b'/tmp/plan.json', __file__],
    'ooc_allocator': ['pool', 'virtual', 'async', 'unified'],
    'ooc_parameters': [None, 'file'],
    'ooc_log': [None, 'INFO', 'debug', logging.WARNING, 0],
}
NO_AMOUNT = 'is no amount of bytes; '
BYTES = [
    ('12 bananas', "'12 bananas' is no amount of bytes; write a number of bytes, or one with a unit of 'kB', 'MB'"),
    ('-1GB', NO_AMOUNT), (True, NO_AMOUNT), ([], NO_AMOUNT), (float('nan'), NO_AMOUNT), ({}, NO_AMOUNT)]
POSITIVE = [*BYTES, *((value, 'it must be at least 1 byte') for value in (0, -5, '0GB', 0.5))]
WHOLE = 'use a whole number of iterations, at least 1'
LEVEL = "use None or a level of Python's logging, such as 'INFO' or logging.INFO"
BAD = {
    'ooc': [(value, 'use None or one of: auto, capacity, keep, lms, pooch, ')
            for value in ('bananas', '', 'KEEP', 1, True)],
    'ooc_budget': POSITIVE,
    'ooc_spill_dir': [('/nowhere/at/all', 'there is no such folder; make it'), (5, 'use None or the path of a folder'),
                      *((value, 'there is no such folder') for value in ('', 'a\0b')),
                      *((value, 'that is no folder; name one') for value in (__file__, '/dev/null'))],
    'ooc_host_limit': POSITIVE,
    'ooc_workspace': POSITIVE,
    'ooc_min_bytes': [*BYTES, (None, NO_AMOUNT), (-1, 'it must be at least 0 bytes')],
    'ooc_profile_iterations': [(value, WHOLE) for value in (0, -1, 1.5, 2.0, '2', None, False)],
    'ooc_plan': [('/nowhere/plan.json', 'there is no folder /nowhere; make it'),
                 *((value, 'that is no name of a file') for value in ('', 'a\0b')),
                 ('/tmp', 'that is a folder; name a file in it'),
                 *((value, 'use None or the path of a file') for value in (5, True, ['plan.json']))],
    'ooc_allocator': [('bananas', 'use one of: pool, virtual, async, unified'), (None, 'use one of: pool')],
    'ooc_parameters': [(value, "use None or 'file'") for value in ('disk', True, 1, '')],
    'ooc_log': [(value, LEVEL) for value in ('bananas', True, -1, 10.0, [])],
}
GOOD_CASES = [(name, value) for name, values in GOOD.items() for value in values]
BAD_CASES = [(name, value, message) for name, rows in BAD.items() for value, message in rows]
DEFAULTS = {'ooc': None, 'ooc_budget': None, 'ooc_spill_dir': None, 'ooc_host_limit': None, 'ooc_workspace': None,
            'ooc_min_bytes': 1000000, 'ooc_profile_iterations': 1, 'ooc_plan': None, 'ooc_allocator': 'virtual',
            'ooc_log': None, 'ooc_parameters': None}


def using(**entries):
    stack = contextlib.ExitStack()
    for name, value in entries.items():
        stack.enter_context(chainer.using_config(name, value))
    return stack


def test_the_entries_and_their_defaults_are_those_of_the_design():
    assert {name: getattr(chainer.config, name) for name in dir_of(chainer.global_config)} == DEFAULTS


def dir_of(global_config):
    return [name for name in vars(global_config) if name.startswith('ooc')]


@pytest.mark.parametrize(('name', 'value'), GOOD_CASES)
def test_a_good_value_is_taken_and_readable(name, value):
    is_path = name in ('ooc_spill_dir', 'ooc_plan') and value is not None
    readable = os.path.abspath(os.fsdecode(value)) if is_path else value
    assert config.check(name, value) == readable
    with chainer.using_config(name, value):
        assert getattr(chainer.config, name) == readable
        config.current()
    assert getattr(chainer.config, name) == DEFAULTS[name]


@pytest.mark.parametrize(('name', 'value', 'message'), BAD_CASES)
def test_a_bad_value_is_named_with_its_entry_and_the_good_ones(name, value, message):
    with pytest.raises(ConfigError) as caught:
        config.check(name, value)
    assert str(caught.value).startswith(f'chainer.config.{name} = {value!r} cannot be used; ')
    assert message in str(caught.value)


@pytest.mark.parametrize(('name', 'value'), [(name, value) for name, value, _ in BAD_CASES])
def test_a_bad_value_raises_where_it_is_written_and_changes_nothing(name, value):
    def written_in_the_thread():
        setattr(chainer.config, name, value)

    def written_for_all_threads():
        setattr(chainer.global_config, name, value)

    def written_for_a_block():
        with chainer.using_config(name, value):
            pytest.fail('the block ran')

    for write in (written_in_the_thread, written_for_all_threads, written_for_a_block):
        with pytest.raises(ConfigError):
            write()
        assert getattr(chainer.config, name) == DEFAULTS[name]


@pytest.mark.parametrize(('written', 'meant'), [('Pooch', 'pooch'), ('swapall', 'swap-all'), ('AUTO', 'auto')])
def test_a_policy_that_is_nearly_one_is_asked_about(written, meant):
    with pytest.raises(ConfigError, match=f'did you mean {meant!r}[?] use None or one of: auto, '):
        chainer.config.ooc = written


def test_an_entry_that_is_misspelt_is_refused_with_those_that_exist():
    with pytest.raises(ConfigError) as caught:
        chainer.config.ooc_bugdet = '1GB'
    assert str(caught.value) == (
        "chainer.config.ooc_bugdet is no entry of chainer_ooc; did you mean 'ooc_budget'? there are: "
        + ', '.join(sorted(DEFAULTS)))
    assert not hasattr(chainer.config, 'ooc_bugdet')


def test_entries_of_chainer_itself_are_not_looked_at():
    with chainer.using_config('my_own_entry', 'anything'):
        assert chainer.config.my_own_entry == 'anything'


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, 'access', lambda path, mode: False)  # root may write everywhere
    with pytest.raises(ConfigError, match='the folder cannot be written to; choose another, or change its mode'):
        config.check('ooc_spill_dir', str(tmp_path))


def test_a_plan_in_a_folder_that_may_not_be_written_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, 'access', lambda path, mode: not mode & os.W_OK)
    with pytest.raises(ConfigError, match=f'the folder {tmp_path} cannot be written to; choose another'):
        config.check('ooc_plan', str(tmp_path / 'plan.json'))


def test_a_plan_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    (tmp_path / 'plan.json').write_text('')
    monkeypatch.setattr(os, 'access', lambda path, mode: mode != os.R_OK)
    with pytest.raises(ConfigError, match='the file cannot be read; name another'):
        config.check('ooc_plan', str(tmp_path / 'plan.json'))


@pytest.mark.parametrize(('entry', 'attribute'), [('ooc_spill_dir', 'spill_dir'), ('ooc_plan', 'plan_file')])
@pytest.mark.parametrize('everywhere', [False, True])
def test_a_path_is_that_of_the_folder_where_it_was_set(everywhere, entry, attribute, tmp_path, monkeypatch):
    (tmp_path / 'data').mkdir()
    path = 'data' if entry == 'ooc_spill_dir' else 'data/plan.json'
    monkeypatch.chdir(tmp_path)
    if everywhere:
        monkeypatch.setattr(chainer.global_config, entry, path)
    with using(ooc='swap-all', **({} if everywhere else {entry: path})):
        monkeypatch.chdir('/')
        assert getattr(chainer.config, entry) == getattr(config.current(), attribute) == str(tmp_path / path)


def test_settings_are_read_in_bytes_and_levels(tmp_path):
    with using(ooc='swap-all', ooc_budget='1.5GB', ooc_spill_dir=tmp_path, ooc_host_limit='2GiB', ooc_workspace=4096,
               ooc_min_bytes='2MB', ooc_profile_iterations=3, ooc_plan=tmp_path / 'plan.json', ooc_log='debug'):
        assert config.current() == config.Settings(
            policy='swap-all', budget_bytes=1500000000, spill_dir=str(tmp_path), host_limit_bytes=2**31,
            workspace_bytes=4096, min_bytes=2000000, allocator='virtual', profile_iterations=3,
            plan_file=str(tmp_path / 'plan.json'), log_level=logging.DEBUG)


def test_settings_follow_the_configuration_back_and_forth():
    with using(ooc='keep', ooc_budget=100):
        first = config.current()
        with using(ooc_budget=200):
            assert config.current() == dataclasses.replace(first, budget_bytes=200)
        assert config.current() == first


def test_settings_are_keyword_only_and_frozen():
    with pytest.raises(TypeError):
        config.Settings('keep', None, None, None, None, 0, 1, None, None)
    with using(ooc='keep'), pytest.raises(dataclasses.FrozenInstanceError):
        config.current().min_bytes = 5
    hash(config.current())


def test_a_value_that_went_in_unseen_is_found_when_it_is_read():
    chainer.config._local.ooc_budget = 'bananas'
    try:
        with pytest.raises(ConfigError, match='ooc_budget'):
            config.current()
    finally:
        del chainer.config._local.ooc_budget


def test_the_entries_show():
    stream = io.StringIO()
    with chainer.using_config('ooc_budget', '1.5GB'):
        chainer.config.show(stream)
    shown = dict(line.split(None, 1) for line in stream.getvalue().splitlines())
    assert shown['ooc_budget'] == '1.5GB'
    assert shown['ooc'] == 'None'
    assert set(DEFAULTS) <= set(shown)
