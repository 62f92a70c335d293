"""What tests of several rooms share, and benchmarks use too: `from support.fake_driver import FakeDriver`.

pytest has tests/ on its path (setup.cfg); a script puts it there.
"""
