"""What a rank does with the plan that another one has made: follows it where it holds, and is never worse for it."""
import dataclasses
import pickle

import pytest

import chainer_ooc
from chainer_ooc.classify.policies import POLICIES, Policy
from chainer_ooc.execute import sessions
from chainer_ooc.execute.graphs import shared_plans
from chainer_ooc.execute.graphs.shared_plans import SharedPlans
from chainer_ooc.execute.graphs.times import Times
from chainer_ooc.plans.making import make_plan
from chainer_ooc.problem import Decision, Verdict, changed, everything, problem_of
from chainer_ooc.ranks.agreement import Agreement, Offer
from support.planning.small_problems import draw_problem
from support.trainings.ooc_training import Training, assert_same_bits, floor_of, ooc, plain
from support.trainings.verdict_mixes import recompute_all

NETWORK = 'residual'


class Rank1:
    """Rank 1 of two, which hears what a test says.

    Attributes:
        rank: its number.
        offered: by key, what it has offered, the latest last.
        to_arrive: what it will hear.
    """

    rank = 1

    def __init__(self):
        self.offered, self.to_arrive = {}, []

    def post(self, receiver, message):
        assert receiver == 0
        self.offered.setdefault(message[0], []).append(Offer(*message[1]))

    def take(self):
        arrived, self.to_arrive = self.to_arrive, []
        return arrived

    def hear(self, decision, room_bytes=0, rank=0):
        """Rank 0 says what holds for the graph that was offered last."""
        self.to_arrive.append((list(self.offered)[-1], (room_bytes, rank, decision)))


def swap_but(count):
    """Everything is swapped but so many maps."""
    def decide(problem):
        verdicts = everything(problem.trace, problem.min_bytes)
        swapped = [number for number, verdict in enumerate(verdicts) if verdict is Verdict.SWAP]
        return Decision(changed(verdicts, swapped[:count], Verdict.KEEP))
    return decide


@pytest.fixture
def rank(monkeypatch):
    """This process as rank 1, with plans that are not made anew for what the machine was busy with."""
    post = Rank1()
    agreement = Agreement(post)

    def current():
        agreement.look()
        return SharedPlans(agreement)

    monkeypatch.setattr(shared_plans, 'current', current)
    monkeypatch.setattr(Times, 'note', lambda self, timing: False)
    monkeypatch.setitem(POLICIES, 'but-one', Policy('but-one', 'for tests', swap_but(1)))
    return post


def offers(post):
    return [each for offered in post.offered.values() for each in offered]


def decision():
    return chainer_ooc.plan().decision()


def another(decide):
    """What rank 0 decides by its own policy for the graph in force."""
    return Decision(decide(problem_in_force()).verdicts, leaves={}, shares_chains=True)


def problem_in_force():
    return problem_of(sessions.current().traces()[-1], 1 << 40, 0)


def test_a_plan_that_was_told_of_is_followed_with_equal_bits(rank):
    with ooc('but-one'):
        training = Training(NETWORK)
        training.iterate(2)
        own = decision()
        rank.hear(another(swap_but(3)))
        training.iterate(2)
        assert decision().verdicts == another(swap_but(3)).verdicts != own.verdicts
        training.finish()
    assert_same_bits(training.outcome, plain(NETWORK, 4))


def test_one_plan_is_offered_once_and_what_is_followed_is_not(rank):
    with ooc('but-one'):
        training = Training(NETWORK)
        training.iterate(4)
        assert [each.plan for each in offers(rank)] == [decision()]
        rank.hear(another(swap_but(3)))
        training.iterate(3)
        assert len(offers(rank)) == 1


def test_what_is_followed_is_not_offered_where_state_is_to_come_either(rank):
    """As in the first update of ChainerMN's, which broadcasts alone."""
    with ooc('but-one'):
        training = Training(NETWORK)
        training.optimizer.update = lambda: None
        training.iterate(4)
        own = len(offers(rank))
        rank.hear(another(swap_but(3)))
        training.iterate(3)
        assert decision().verdicts == another(swap_but(3)).verdicts
        assert len(offers(rank)) == own


def test_room_is_the_budget_without_what_stands(rank):
    with ooc('but-one', budget=10**9):
        training = Training(NETWORK)
        training.iterate(2)
    stands = 2 * sum(each.array.nbytes for each in training.model.params())  # parameters and momentum
    offered, = offers(rank)
    assert 0 < 10**9 - offered.room_bytes <= 2 * stands


@pytest.mark.parametrize('told_first', [True, False])
def test_a_plan_that_needs_more_than_the_budget_is_refused(rank, told_first):
    keep = Policy('keep-all', 'for tests', swap_but(1000))
    budget = int(1.02 * floor_of(NETWORK, 'swap-all'))
    with ooc('swap-all', budget=budget):
        training = Training(NETWORK)
        training.iterate(2)
        own = decision()
        rank.hear(another(keep.decide))
        training.iterate(2)
        assert decision().verdicts == own.verdicts
        if told_first:
            chainer_ooc.reset()
            training.iterate(2)
            assert decision().verdicts == own.verdicts
        assert max(each.peak_bytes for each in training.outcome.stats if each.phase == 'run') <= budget


def test_verdicts_that_maps_cannot_have_here_are_refused(rank):
    with ooc('but-one'):
        training = Training(NETWORK)
        training.iterate(2)
        own = decision()
        rank.hear(Decision(len(own.verdicts) * (Verdict.RECOMPUTE,), shares_chains=True))
        training.iterate(2)
        assert decision() == own


def test_a_rank_that_refuses_a_newer_plan_offers_the_one_that_it_follows(rank):
    with ooc('swap-all'):
        training = Training(NETWORK)
        training.iterate(2)
        rank.hear(another(recompute_all))
        training.iterate(2)
        followed = decision()
        assert followed.verdicts == another(recompute_all).verdicts
        rank.hear(Decision(len(followed.verdicts) * (Verdict.RECOMPUTE,), shares_chains=True))
        training.iterate(2)
        assert decision() == followed
        assert offers(rank)[-1].plan == followed


def test_the_rank_whose_plan_holds_plans_anew_and_others_lay_out_what_they_were_told(rank, monkeypatch):
    monkeypatch.setattr(Times, 'note', lambda self, timing: True)
    decided = []

    def decide(problem):
        decided.append(problem)
        return swap_but(len(decided))(problem)

    monkeypatch.setitem(POLICIES, 'another-each-time', Policy('another-each-time', 'for tests', decide))
    with ooc('another-each-time'):
        training = Training(NETWORK)
        training.iterate(2)
        rank.hear(decision(), rank=1)
        training.iterate(4)
        assert len(decided) > 1
        rank.hear(another(swap_but(0)))
        training.iterate()
        before = len(decided)
        training.iterate(4)
        assert len(decided) == before
        assert decision().verdicts == another(swap_but(0)).verdicts


def test_a_rank_returns_to_its_own_plan_where_that_holds_after_all(rank):
    with ooc('but-one'):
        training = Training(NETWORK)
        training.iterate(2)
        own = decision()
        rank.hear(another(swap_but(3)))
        training.iterate()
        rank.hear(own, rank=1)
        training.iterate()
        assert decision() == own


def test_its_own_plan_that_holds_does_not_take_the_place_of_a_newer_one_of_its_own(rank, monkeypatch):
    with ooc('but-one'):
        training = Training(NETWORK)
        training.iterate(2)
        before = chainer_ooc.plan()
        rank.hear(another(swap_but(3)), rank=1)
        training.iterate(2)
        assert chainer_ooc.plan() is before


def test_graphs_of_other_sizes_have_other_keys_and_so_have_other_settings(rank):
    with ooc('but-one'):
        training = Training(NETWORK)
        for size in (4, 6):
            training.iterate(2, size=size)
    with ooc('but-one', min_bytes=10):
        training.iterate(2, size=6)
    with ooc('but-one', budget=10**9):
        training.iterate(2, size=6)
    with ooc('swap-all'):
        training.iterate(2, size=6)
    assert len(rank.offered) == 5


def test_a_plan_from_a_file_is_neither_offered_nor_replaced(rank, tmp_path):
    path = str(tmp_path / 'plans')
    with ooc('but-one', plan=path):
        training = Training(NETWORK)
        training.iterate(2)
        own, key = decision(), list(rank.offered)[-1]
        chainer_ooc.reset()
        rank.offered[key].clear()
        training.iterate()
        rank.hear(another(swap_but(3)))
        training.iterate(2)
        assert decision() == own
        assert offers(rank) == []


@pytest.mark.parametrize('policy', ['swap-all', 'pooch', 'superneurons', 'tensor-cache', 'unified'])
def test_a_decision_arrives_as_it_was(policy):
    for seed in range(20):
        decided = make_plan(POLICIES[policy], dataclasses.replace(draw_problem(seed), budget_bytes=1 << 40)).decision()
        assert pickle.loads(pickle.dumps(decided)) == decided
