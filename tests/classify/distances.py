"""How far pooch is from the best of all verdicts, on random problems of few maps. Not a test: run it as a script.

    env PYTHONPATH=tests python tests/classify/distances.py
"""
import statistics
import sys

import hypothesis

from chainer_ooc.classify.policies import POLICIES
from chainer_ooc.classify.search import evaluate
from support.planning.drawn_problems import problems
from support.planning.literal_problems import drawn, times_of_all


def main(count=300, most_maps=5):
    """Prints the median, the worst and the share of exact ones among problems in which not everything fits."""
    found = []

    @hypothesis.settings(max_examples=count, deadline=None, database=None, derandomize=True,
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(problems(most_calls=6))
    def look(problem):
        leaving = [each for each in problem.trace.maps if each.retained and not each.foreign]
        if not 1 < len(leaving) <= most_maps:
            return
        times = times_of_all(problem)
        if times['K' * len(problem.trace.maps)] < float('inf'):
            return
        best = min(times, key=times.get)
        decision = POLICIES['pooch'].decide(problem)
        seconds = evaluate(problem, decision).seconds
        found.append((seconds / times[best], drawn(decision.verdicts), best, len(times)))

    look()
    found.sort()
    ratios = [each[0] for each in found]
    print(f'{len(found)} problems of 2 to {most_maps} maps that do not all fit: pooch over the best of all verdicts')
    print(f'median {statistics.median(ratios):.4f}, mean {statistics.fmean(ratios):.4f}, worst {ratios[-1]:.4f}, '
          f'exact or better {sum(each <= 1 + 1e-9 for each in ratios)} of {len(ratios)}')
    for each in found[-5:]:
        print(f'  {each[0]:.3f}: pooch {each[1]}, best {each[2]} of {each[3]}')


if __name__ == '__main__':
    main(*map(int, sys.argv[1:]))
