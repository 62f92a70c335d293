"""A plan by position, as execution follows it."""
from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.execute.graphs.orders import give_orders
from chainer_ooc.plans.making import make_plan
from chainer_ooc.problem import Standing, Verdict
from chainer_ooc.schedule.chains import Chains
from support.planning.literal_problems import literal_problem

#: Four calls in a chain, whose maps can all be made again.
PROBLEM = literal_problem(
    [(1.0, 0)] * 4, [(1.0, 0)] * 4,
    [(4, 0, [1], [1], True), (4, 1, [2], [2], True), (4, 2, [3], [3], True), (4, 3, [], [3], True)], 13)


def test_what_a_plan_says_of_each_map_is_found_by_position():
    plan = make_plan(POLICIES['swap-all'], PROBLEM)
    orders = give_orders(PROBLEM.trace, plan, PROBLEM.min_bytes, Standing(0, 0))
    left = sorted(each for maps in orders.leave_after.values() for each in maps)
    assert left == [each.id for each in PROBLEM.trace.maps if plan.verdicts[each.id] is Verdict.SWAP]
    assert not orders.recipes and not orders.discardable


def test_which_calls_run_again_is_worked_out_once(monkeypatch):
    """It is a set of all of them: once for each map, a graph of thousands took seconds."""
    asked, calls = [], Chains.calls.fget
    plan = make_plan(POLICIES['sublinear'], PROBLEM)
    assert plan.chains.calls
    monkeypatch.setattr(Chains, 'calls', property(lambda chains: asked.append(1) or calls(chains)))
    orders = give_orders(PROBLEM.trace, plan, PROBLEM.min_bytes, Standing(0, 0))
    assert orders.discardable <= {each.id for each in PROBLEM.trace.maps if each.producer in orders.recipes}
    assert len(asked) == 1
