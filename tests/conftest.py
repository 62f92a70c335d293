"""What every test has to leave as it found it (promise P9): hooks, tracemalloc, threads, descriptors, configuration.

Nothing here imports chainer: a test of a pure room must not pay for it, and a test of the import itself must come
first. What a test imports on its own is looked up in `sys.modules` afterwards.
"""
import gc
import os
import sys
import threading
import tracemalloc

import hypothesis
import pytest

_PATIENT = {'deadline': None, 'suppress_health_check': [hypothesis.HealthCheck.too_slow]}
# The same examples in every run, however slow the machine: a failure is the change's, not the seed's or the load's.
hypothesis.settings.register_profile('repeatable', max_examples=40, derandomize=True, **_PATIENT)
# Others each time: as many as a test says (`support.examples`), three times and ten times as many.
# All are here and not where they are used: pytest asks for a profile before it reads any test.
hypothesis.settings.register_profile('full', max_examples=100, print_blob=True, **_PATIENT)
hypothesis.settings.register_profile('many', max_examples=300, print_blob=True, **_PATIENT)
hypothesis.settings.register_profile('nightly', max_examples=1000, print_blob=True, **_PATIENT)
hypothesis.settings.load_profile('repeatable')

# It has asserts of its own. Here, since several folders import it.
pytest.register_assert_rewrite('support.planning.literal_iterations')

#: What takes half of the time of all tests: whole programs and commands, any sequence of states and interrupts, many
#: lengths and models. `--quick` leaves it out.
SLOW = (
    'backends/test_making_room.py', 'backends/test_memory.py', 'cuda/test_device_calls.py',
    'cuda/test_gpu_evidence.py', 'cuda/test_gpu_programme.py', 'cuda/test_presence.py',
    'cuda/test_trainings_on_fake.py', 'examples/', 'execute/test_container.py', 'execute/test_floors.py',
    'execute/test_garbage.py', 'execute/test_handlers.py', 'execute/test_held_views.py',
    'execute/test_kept_pages.py', 'execute/test_later_backward.py', 'execute/test_lengths.py',
    'execute/test_models_in_turn.py', 'execute/test_counted.py', 'execute/test_other_graphs.py',
    'execute/test_random_graphs.py', 'execute/test_shortage.py', 'execute/test_sizes.py', 'execute/test_states.py',
    'execute/test_trainings.py', 'execute/test_true_peak.py', 'execute/test_unmoved.py', 'execute/test_walls.py',
    'fork/test_compat.py', 'fork/test_hook.py', 'kernels/test_cudnn_engines.py', 'plans/test_making_properties.py',
    'soak/', 'test_cli.py', 'test_cli_doctor.py', 'test_cli_terminal.py', 'test_packaging.py', 'usage/')

#: A GPU's driver opens its device again when it likes, and one more event, and keeps them open.
OF_DRIVERS = ('/dev/nvidia', '/dev/dri/', '/dev/nvhost', 'anon_inode:[eventfd]')


@pytest.fixture
def no_arena(monkeypatch):
    """The host as it is where there was no compiler: no memory is kept for the next arrays."""
    from chainer_ooc.backends.host import arena
    monkeypatch.setattr(arena, '_library', lambda: 'this test has none')


def pytest_addoption(parser):
    group = parser.getgroup('chainer_ooc')
    group.addoption('--backend', choices=['host', 'chaos'], default='host',
                    help='device of the trainings in tests/execute (default: host)')
    group.addoption('--chaos-seed', type=int, default=0, metavar='N', help='seed of --backend chaos (default: 0)')
    group.addoption('--ranks', action='store_true', help='also tests/ranks, which start several processes with mpiexec')
    group.addoption('--quick', action='store_true', help='without the files that take half of the time')
    group.addoption('--long', action='store_true', help='also the cases that are much like others (nightly)')


def pytest_collection_modifyitems(config, items):
    _leave_out(config, items, lambda item: not config.getoption('--long') and item.get_closest_marker('long'))
    _leave_out(config, items, lambda item: config.getoption('--quick') and item.nodeid.startswith(
        tuple(f'tests/{each}' for each in SLOW)))
    if config.getoption('--backend') != 'host':
        for item in items:
            if item.get_closest_marker('host'):
                item.add_marker(pytest.mark.skip(reason='is about the spill file or the swap threads of the host'))


def _leave_out(config, items, is_one):
    """Leaves out the tests for which that holds."""
    left_out = {*filter(is_one, items)}
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    _set_aside_what_stays()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        _set_aside_what_stays()
    return result


def _set_aside_what_stays():
    """Has collections of cycles pass over what was imported, collected and cached: a million objects that stay.

    They were most of the time of many tests, as each first iteration of a session collects.
    """
    gc.collect()
    gc.freeze()


def _chainer_state():
    chainer = sys.modules.get('chainer')
    if not hasattr(chainer, 'get_function_hooks'):  # absent, or an import that a test made fail
        return {'function hooks': [], 'configuration': {}}
    return {
        'function hooks': list(chainer.get_function_hooks()),
        'configuration': _own_entries(chainer.config._local),
        'global configuration': _own_entries(chainer.global_config),
    }


def _own_entries(config):
    return {name: value for name, value in sorted(vars(config).items()) if name.startswith('ooc')}


def _descriptors():
    targets = {}
    for number in os.listdir('/proc/self/fd'):
        try:
            target = os.readlink(f'/proc/self/fd/{number}')
        except OSError:  # the descriptor that listdir itself had open
            continue
        if not target.startswith(OF_DRIVERS):
            targets[int(number)] = target
    return targets


def _state():
    return {
        'tracemalloc': tracemalloc.is_tracing(),
        'threads': sorted(thread.name for thread in threading.enumerate() if thread.name.startswith('chainer_ooc')),
        'descriptors': _descriptors(),
        **_chainer_state(),
    }


def _forget_plans():
    chainer_ooc = sys.modules.get('chainer_ooc')
    if 'chainer' in sys.modules and hasattr(chainer_ooc, 'reset'):
        chainer_ooc.reset()
    regions = sys.modules.get('chainer_ooc.backends.cuda.regions')
    if regions is not None:  # gigabytes of addresses, under a stand-in for a driver
        regions.give_back()


def _left_behind(before):
    after = _state()
    # What only one of the two has came or went with the test's own import of chainer.
    return [f'{what}: {before[what]} before, {now} after' for what, now in after.items()
            if now != before.get(what, now)]


@pytest.fixture(autouse=True)
def any_number_of_recordings():
    """Lifts the limit of a process, which all tests together pass."""
    meter = sys.modules.get('chainer_ooc.backends.host.meter')
    if meter is not None:
        meter.MOST_STARTS = sys.maxsize


@pytest.fixture(autouse=True)
def first_plans_are_complete():
    """However busy the machine is: what takes over later is the subject of tests of its own."""
    planner = sys.modules.get('chainer_ooc.execute.graphs.planner')
    if planner is not None:
        planner.FIRST_SECONDS = 60.0


@pytest.fixture(autouse=True)
def leaves_no_trace():
    """Fails a test that leaves something behind, and says what."""
    before = _state()
    yield
    _forget_plans()
    if _left_behind(before):
        gc.collect()  # what hangs on a cycle only is not left behind; collecting after every test would be slow
    left = _left_behind(before)
    if left:
        pytest.fail('the test left something behind\n' + '\n'.join(left), pytrace=False)


@pytest.fixture(scope='session')
def matplotlib(tmp_path_factory):
    """Lets matplotlib open its font files once: it keeps them open for as long as the process lives."""
    pytest.importorskip('matplotlib')
    from chainer_ooc.report import figure

    first = figure.new_figure(1, 1)
    axes = first.subplots()
    axes.set_title('bold', fontweight='bold')
    axes.set_xlabel('$10^3$ \u2211', style='italic')
    figure.save(first, tmp_path_factory.mktemp('fonts') / 'first.png')
