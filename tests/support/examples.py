"""How many examples a property is tried with."""
import hypothesis


def examples(count, **others):
    """Settings for so many examples under Hypothesis's own profile, and as many times as many under another one.

    What every run has is fewer, what nightly ones have is many more; tests/conftest.py has the profiles.
    """
    drawn = max(1, count * hypothesis.settings().max_examples // 100)
    return hypothesis.settings(max_examples=drawn, deadline=None, **others)
