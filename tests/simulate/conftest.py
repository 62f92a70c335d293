"""What the simulator's tests share."""
import pytest

from support.planning.literal_iterations import Shown, make_problem, run_problem


@pytest.fixture(scope='session')
def run():
    """Simulates a literal iteration; arguments of `make_problem` and of `run_problem`."""
    def run(forward, backward, maps, keep='', again='', begin=None, leaves=None, synchronous=False,
            shares_chains=None, mapped=False, **machine):
        problem = make_problem(forward, backward, maps, **machine)
        return Shown(run_problem(problem, keep, again, begin, leaves, synchronous, shares_chains, mapped))
    return run
