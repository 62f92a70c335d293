"""The clocks of the GPU programme, set by hand: which rows are begun, which are dropped, and how long each may take."""

import pytest

from conduct import GIVE_UP, GIVE_UP_SECONDS, Clock, Conductor
from programme import STAGES, Part, Programme, Row
from run import chosen
from sizes import FULL

GB = 10**9


class Hands:
    """A clock that is set by hand, and a worker that moves it.

    Args:
        seconds_a_row: in a process that runs; a function of the asks, or a number.
        start_seconds: of a process.
        outcome: of each row.
    """

    def __init__(self, seconds_a_row=5.0, outcome='done', start_seconds=0.0):
        self.seconds = 0.0
        self.seconds_a_row, self.outcome, self.start_seconds = seconds_a_row, outcome, start_seconds
        self.limits, self.runs = [], False

    def now(self):
        return self.seconds

    def starts(self, alone):
        return alone or not self.runs

    def ask(self, kind, asks, most_seconds, *, alone=False):
        self.limits.append(most_seconds)
        fresh, self.runs = self.starts(alone), not alone
        took = self.seconds_a_row(asks) if callable(self.seconds_a_row) else self.seconds_a_row
        whole = took + self.start_seconds * fresh
        self.seconds += min(whole, most_seconds)
        if whole > most_seconds:
            self.runs = False
            return {'outcome': 'failed', 'reason': 'given up', 'row_seconds': most_seconds, 'fresh_process': fresh}
        return {'outcome': self.outcome, 'row_seconds': whole, 'fresh_process': fresh,
                'start_seconds': self.start_seconds * fresh}


def some(count, name='part', reserved=0.0, **row):
    def rows():
        for number in range(count):
            yield Row(kind='works', asks={'number': number}, like='works', **{'expected_seconds': 10.0,
                                                                              'start_seconds': 0.0, **row})
    return Part(name=name, title=name, kind='self-test', stage='first', rows=rows, reserved_seconds=reserved)


def conducted(parts, seconds, hands, host_bytes=10**12):
    noted = []
    conductor = Conductor(hands, Clock(seconds, hands.now), host_bytes,
                          lambda so_far: noted.append([len(part['rows']) for part in so_far]))
    return conductor.conduct(parts), noted


def test_a_row_that_cannot_be_expected_to_end_is_dropped_and_a_shorter_one_runs():
    hands = Hands(seconds_a_row=20.0)
    done, _ = conducted([some(2, 'a', expected_seconds=20), some(1, 'b', expected_seconds=5)], 35, hands)
    assert [[row['outcome'] for row in part['rows']] for part in done] == [['done', 'dropped'], ['dropped']]
    assert done[0]['rows'][1]['reason'] == (
        'it would take about 24 s (by what rows alike took here), and 15 s were left for it')
    assert hands.seconds == 20


def test_the_first_row_is_measured_and_the_others_are_expected_to_take_as_long():
    hands = Hands(seconds_a_row=30.0)
    part, = conducted([some(5, expected_seconds=5)], 100, hands)[0]
    # 5 s were stated, and 25 s are what it may take; 30 s fail. Nothing is known then but what was stated.
    assert [row['outcome'] for row in part['rows']][:1] == ['failed']
    hands = Hands(seconds_a_row=20.0)
    part, = conducted([some(6, expected_seconds=5)], 100, hands)[0]
    assert [row['outcome'] for row in part['rows']] == ['done'] * 4 + ['dropped'] * 2
    assert part['rows'][1]['expected_seconds'] == 24.0


def test_rows_of_another_batch_are_expected_in_proportion():
    """Twice as slow as stated at batch 128: so at 640 too."""
    programme = Programme('cuda', 16 * GB, FULL)
    rows = [programme.training('resnet50', batch, 'keep') for batch in (128, 640)]
    stated = [row.expected_seconds + row.start_seconds for row in rows]
    part = Part(name='a', title='a', kind='training', stage='first', rows=lambda: (row for row in rows))
    hands = Hands(seconds_a_row=2 * stated[0])
    done, = conducted([part], 10**4, hands)[0]
    assert done['rows'][1]['expected_seconds'] == pytest.approx(2 * rows[1].expected_seconds)


def test_rows_that_were_quick_in_core_shorten_no_others():
    programme = Programme('cuda', 16 * GB, FULL)
    rows = [programme.training('resnet50', 128, 'keep'), programme.training('resnet50', 640, 'pooch')]
    part = Part(name='a', title='a', kind='training', stage='first', rows=lambda: (row for row in rows))
    hands = Hands(seconds_a_row=1.0)
    done, = conducted([part], 10**4, hands)[0]
    assert done['rows'][1]['expected_seconds'] == rows[1].expected_seconds
    assert hands.limits[1] == GIVE_UP * rows[1].expected_seconds + GIVE_UP_SECONDS


def test_a_row_in_a_process_that_runs_is_spared_the_start_and_the_first_iterations():
    from costs import SLACK, Costs
    row = Row(kind='training', like='a', expected_seconds=50, start_seconds=10)
    costs = Costs()
    costs.note(row, {'outcome': 'done', 'row_seconds': 80.0, 'fresh_process': True, 'start_seconds': 8.0,
                     'seconds': 2.0, 'settle_seconds': [32.0, 12.0, 2.0, 2.0, 2.0]})
    assert costs.expected(row, fresh=False)[0] == pytest.approx(SLACK * (80 - 8 - 30 - 10))
    assert costs.expected(row, fresh=True)[0] == pytest.approx(SLACK * 80)


def test_a_refused_row_has_paid_what_the_first_of_its_like_costs():
    """43 s for a refusal, 19 s for the next row in the same process: one alone takes both, and a start."""
    from costs import SLACK, Costs
    refused, alike = (Row(kind='training', like='a', expected_seconds=60, start_seconds=10) for _ in range(2))
    costs = Costs()
    costs.note(refused, {'outcome': 'refused', 'row_seconds': 43.0, 'fresh_process': False})
    costs.note(alike, {'outcome': 'done', 'row_seconds': 19.0, 'fresh_process': False})
    assert costs.expected(alike, fresh=False)[0] == pytest.approx(SLACK * 19)
    start = 10 * 19 / 60
    assert costs.expected(alike, fresh=True)[0] == pytest.approx(SLACK * (43 + 19 + start))


def test_in_half_the_time_the_first_part_has_time_all_the_same():
    """A card that was lent for four minutes: the parts after the first had reserved more than that."""
    hands = Hands(seconds_a_row=10.0)
    done, _ = conducted([some(1, 'a'), some(9, 'b', reserved=300.0)], 240, hands)
    assert [row['outcome'] for row in done[0]['rows']] == ['done']


def test_time_is_kept_for_the_parts_that_reserved_some():
    hands = Hands(seconds_a_row=10.0)
    done, _ = conducted([some(9, 'a'), some(2, 'b', reserved=30.0), some(9, 'c')], 100, hands)
    assert [[row['outcome'] for row in part['rows']].count('done') for part in done] == [6, 2, 1]


def test_a_row_that_takes_far_longer_than_expected_is_given_up():
    hands = Hands(seconds_a_row=1000.0)
    conducted([some(2)], 500, hands)
    assert hands.limits == [GIVE_UP * 10 + GIVE_UP_SECONDS] * 2


def test_rows_that_need_more_of_the_host_than_there_is_are_dropped():
    part, = conducted([some(1, host_bytes=154 * GB)], 100, Hands(), host_bytes=137 * GB)[0]
    assert part['rows'][0]['reason'] == 'it needs 154 GB of the host, which has 137 GB (--host-memory)'
    parts = Programme('cuda', 16 * GB, FULL).parts()
    largest = next(next(part.rows()) for part in parts if part.name == 'largest-batch')
    assert largest.host_bytes == pytest.approx(640 * 80.1e6)


@pytest.mark.parametrize('seconds_a_row', [1.0, 7.0, 40.0, 1000.0])
@pytest.mark.parametrize('stage', [*STAGES, None])
def test_the_programme_ends_in_its_time_whatever_rows_do(stage, seconds_a_row):
    hands = Hands(seconds_a_row, start_seconds=5.0)
    everything = chosen(Programme('cuda', 16 * GB, FULL).parts(), None, stage)
    done, _ = conducted(everything, 530, hands)
    assert hands.seconds <= 530
    assert [part['name'] for part in done] == [part.name for part in everything]
    assert all(part['rows'] for part in done), 'what did not run says why'


def test_a_pooch_row_of_70_s_leaves_time_for_the_others_of_the_first_command():
    """What was guessed of a card: 70 s for the first row out-of-core, which pins, and 25 s for those after it."""
    pinned = []

    def seconds(asks):
        if 'way' in asks:
            return 1.5
        if asks.get('batch') != 640 or asks.get('budget_bytes') is None:
            return 12.0
        pinned.append(asks['policy'])
        return 70.0 if len(pinned) == 1 else 25.0

    hands = Hands(seconds, start_seconds=10.0)
    done, _ = conducted(chosen(Programme('cuda', 16 * GB, FULL).parts(), None, 'first'), 530, hands)
    assert {row['outcome'] for part in done for row in part['rows']} == {'done'}


def test_results_are_noted_after_each_row():
    _, noted = conducted([some(2, 'a'), some(1, 'b', expected_seconds=500), some(1, 'c')], 100, Hands())
    assert noted == [[1], [2], [2], [2, 1], [2, 1], [2, 1, 1], [2, 1, 1]]


# --- the pace of a row -----------------------------------------------------------------------------------------------


def paced(seconds_each, until, settle=5, iterations=5, noted=None):
    """Settled and timed iterations of a row that has so many seconds."""
    from contextlib import nullcontext

    from pace import Pace
    clock = [0.0]
    each = iter(seconds_each)

    def iterate():
        took = next(each)
        clock[0] += took
        return took

    noted = {} if noted is None else noted
    settled, timed = Pace(until, lambda: clock[0]).run(
        iterate, settle, iterations, nullcontext(), lambda name, value: noted.update({name: list(value)}))
    return len(settled), len(timed)


def test_a_row_with_time_runs_all_its_iterations():
    assert paced([30, 9] + [2] * 20, 100) == (5, 5)


def test_a_row_that_is_short_of_time_runs_fewer_that_count():
    assert paced([30, 9] + [2] * 20, 54) == (5, 3)


def test_a_row_that_cannot_end_stops_when_it_knows_and_keeps_what_it_measured():
    from pace import OutOfTimeError
    noted = {}
    with pytest.raises(OutOfTimeError, match=r'6 iterations of 10.00 s or more were to come after 3, and 30 s'):
        paced([10] * 20, 60, noted=noted)
    assert noted['settle_seconds'] == [10, 10, 10]
    assert OutOfTimeError.outcome == 'dropped'


def test_a_first_iteration_that_compiles_does_not_end_a_row():
    assert paced([50, 5] + [1] * 20, 70) == (5, 5)
