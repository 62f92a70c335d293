import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest

import bound_plot
import comparison_chart
import memory_plot
import planning_plot
from training_run import Outcome

ROWS = [
    {'name': 'AlexNet', 'plain_peak_bytes': 2e9, 'ooc_peak_bytes': 1e9, 'plain_seconds': 3.0, 'ooc_seconds': 3.1},
    {'name': 'VGG16', 'plain_peak_bytes': 8e9, 'ooc_peak_bytes': None, 'plain_seconds': 9.0},
]


def assert_is_png(path):
    assert path.read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'
    assert path.stat().st_size > 10_000


def test_memory_is_drawn_with_walls_deaths_and_iterations(matplotlib, run, tmp_path):
    runs = [
        run(),
        run('walled', losses=(), outcome=Outcome.OUT_OF_MEMORY, wall_bytes=200_000_000),
        run('swap-all', policy='swap-all', wall_bytes=200_000_000),
    ]
    memory_plot.draw_memory(runs, tmp_path / 'memory.png', 'Training a net')
    assert_is_png(tmp_path / 'memory.png')


def test_memory_of_one_kind_of_run_is_drawn_in_one_panel(matplotlib, run, tmp_path):
    memory_plot.draw_memory([run()], tmp_path / 'memory.png', 'Training a net')
    assert_is_png(tmp_path / 'memory.png')


def test_memory_without_a_sample_is_refused(run, tmp_path):
    with pytest.raises(ValueError, match='no memory to draw'):
        memory_plot.draw_memory([run(samples=())], tmp_path / 'memory.png', '')


def test_comparison_is_drawn_and_a_missing_figure_leaves_a_gap(matplotlib, tmp_path):
    comparison_chart.draw_comparison(ROWS, tmp_path / 'chart.png', 'Four networks')
    assert_is_png(tmp_path / 'chart.png')


def test_comparison_without_rows_is_refused(tmp_path):
    with pytest.raises(ValueError, match='there are no rows'):
        comparison_chart.draw_comparison([], tmp_path / 'chart.png', '')


def test_missing_matplotlib_is_an_error_that_says_how_to_get_it(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    with pytest.raises(ImportError, match=r'pip install matplotlib'):
        memory_plot.draw_memory([run()], tmp_path / 'memory.png', '')


def test_tables_need_neither_chainer_nor_matplotlib():
    code = ('import sys; import comparison_table, memory_plot;'
            'print(sorted({"chainer", "matplotlib"} & set(sys.modules)))')
    ran = subprocess.run([sys.executable, '-c', code], cwd=Path(memory_plot.__file__).parent, capture_output=True,
                         text=True, check=True)
    assert ran.stdout.strip() == '[]'


def test_planning_times_are_drawn_over_the_number_of_calls(matplotlib, tmp_path):
    rows = [{'network': f'{calls} calls', 'calls': calls, 'pooch_seconds': calls / 50, 'auto_seconds': calls / 40,
             'swap-opt_seconds': calls / 100, 'simulation_seconds': calls / 1e5} for calls in (1000, 100)]
    planning_plot.draw_planning(rows, tmp_path / 'planning.png', 'Planning')
    assert_is_png(tmp_path / 'planning.png')


def test_no_planning_times_are_refused(tmp_path):
    with pytest.raises(ValueError, match='no rows'):
        planning_plot.draw_planning([], tmp_path / 'none.png', 'Planning')


def test_times_over_budgets_are_drawn_above_the_bound(matplotlib, tmp_path):
    rows = [{'budget_bytes': (4 + each) * 10 ** 9, 'bound': bound, 'pooch': pooch}
            for each, (bound, pooch) in enumerate([(math.inf, None), (1.2, 1.4), (1.0, 1.0)])]
    bound_plot.draw_bound(rows, ['pooch'], tmp_path / 'bound.png', 'Times')
    assert_is_png(tmp_path / 'bound.png')


def test_no_budgets_are_refused(tmp_path):
    with pytest.raises(ValueError, match='at least one budget'):
        bound_plot.draw_bound([], ['pooch'], tmp_path / 'none.png', 'Times')


def test_names_of_networks_do_not_lie_over_each_other(matplotlib, monkeypatch, tmp_path):
    """The graphs of docs/images/planning.png: six residual networks, and one of another kind with as many calls."""
    drawn = []
    monkeypatch.setattr(planning_plot, 'save', lambda figure, path: drawn.append(figure))
    rows = [{'network': name, 'calls': calls, 'auto_seconds': seconds, 'pooch_seconds': seconds / 7,
             'swap-opt_seconds': seconds / 30, 'simulation_seconds': seconds / 4e4} for name, calls, seconds in (
                 ('ResNet, 16 units', 175, 0.7), ('ResNet, 33 units', 345, 1.4), ('ResNeXt101 (3D)', 345, 1.4),
                 ('ResNet, 50 units', 516, 1.7), ('ResNet, 100 units', 1016, 3.3), ('ResNet, 200 units', 2016, 5.4),
                 ('ResNet, 400 units', 4016, 6.8), ('ResNet, 1000 units', 10016, 17.0))]
    planning_plot.draw_planning(rows, tmp_path / 'planning.png', 'Planning time')
    (figure,) = drawn
    figure.draw_without_rendering()
    places = {text.get_text(): text.get_window_extent() for text in figure.axes[0].texts}
    places['legend'] = figure.axes[0].get_legend().get_window_extent()
    assert len(places) > 4
    assert [(one, other) for one, other in itertools.combinations(places, 2)
            if places[one].overlaps(places[other])] == []
