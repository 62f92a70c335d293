"""How many examples a property is tried with."""
import hypothesis


def examples(count, **others):
    """Settings for so many examples under the profile 'full'; fewer in every run, more at night (tests/conftest.py)."""
    drawn = max(1, count * hypothesis.settings().max_examples // 100)
    return hypothesis.settings(max_examples=drawn, deadline=None, **others)
