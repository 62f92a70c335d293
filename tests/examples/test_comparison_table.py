import json

from chainer_ooc.report.table import Column, Table
from comparison_table import compare, comparison_row, loss_table, sideways
from training_run import Outcome, TrainingRun


def test_run_reads_back_equal_from_json(run):
    value = run(policy='swap-all', wall_bytes=10**9)
    assert TrainingRun.from_json(json.loads(json.dumps(value.to_json()))) == value


def test_median_leaves_out_the_first_iteration(run):
    assert run(seconds=2.0).median_seconds == 2.0
    assert run(losses=(7.0,)).median_seconds is None


def test_row_of_an_equal_run_has_overhead_and_moved_bytes(run):
    row = comparison_row(run('swap-all', seconds=1.25, policy='swap-all', peak_bytes=120_000_000), run())
    assert row['peak_ratio'] == 0.4
    assert row['overhead'] == 0.25
    assert (row['swapped_out_bytes'], row['swapped_in_bytes'], row['faults']) == (100, 90, 3)
    assert row['losses_equal'] is True
    assert row['parameters_equal'] is True


def test_a_loss_that_differs_in_its_last_bit_differs(run):
    row = comparison_row(run(losses=(7.0, 6.0, 5.000000000000001), parameters='abd', policy='keep'), run())
    assert row['losses_equal'] is False
    assert row['parameters_equal'] is False
    assert 'DIFFERENT' in compare([run(parameters='abd')], run()).to_text()


def test_a_run_that_died_at_once_has_no_figures_and_no_verdict(run):
    died = run('walled', losses=(), outcome=Outcome.OUT_OF_MEMORY, parameters='')
    row = comparison_row(died, run())
    assert row['outcome'] == 'MemoryError'
    assert [row[key] for key in ('seconds_per_iteration', 'overhead', 'losses_equal', 'parameters_equal')] == [None] * 4


def test_a_run_that_died_later_is_compared_as_far_as_it_got(run):
    assert comparison_row(run(losses=(7.0,), outcome=Outcome.OUT_OF_MEMORY), run())['losses_equal'] is True


def test_the_reference_is_not_compared_with_itself(run):
    reference = run()
    row = comparison_row(reference, reference)
    assert row['losses_equal'] is None
    assert row['overhead'] is None


def test_with_a_workspace_bits_are_held_against_the_run_that_has_it_too(run):
    reference = run()
    same = run('keep', policy='keep', workspace='64MB', losses=(7.0, 6.5, 5.5), parameters='def')
    ooc = run('swap-all', policy='swap-all', workspace='64MB', losses=(7.0, 6.5, 5.5), parameters='def', seconds=2.0)
    rows = compare([reference, same, ooc], reference, same=same).rows
    assert [row['losses_equal'] for row in rows] == [None, None, True]
    assert [row['parameters_equal'] for row in rows] == [None, None, True]
    assert [row['overhead'] for row in rows] == [None, 0.0, 1.0]


def test_losses_are_shown_to_the_last_bit(run):
    lines = loss_table([run(), run('swap-all', losses=(7.0, 6.0))]).to_text().splitlines()
    assert lines[1].split() == ['iteration', 'loss', 'in-core', 'swap-all']
    assert lines[3].split() == ['1', '7.000000', (7.0).hex(), (7.0).hex()]
    assert lines[5].split() == ['3', '5.000000', (5.0).hex(), '-']


def test_sideways_a_row_is_a_column():
    columns = Column('name', 'net'), Column('peak', 'peak', '{} MB'.format, right=True)
    assert sideways(Table(columns, [{'name': 'AlexNet', 'peak': 1235}, {'name': 'VGG16', 'peak': None}], 'Peaks')) == (
        'Peaks\n'
        'net   AlexNet  VGG16\n'
        '----  -------  -----\n'
        'peak  1235 MB      -')
