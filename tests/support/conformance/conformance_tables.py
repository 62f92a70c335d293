"""All tables, joined, and what chainer.functions and chainer.links offer.

A key is the name of a function or link, with what is special about the case after a slash.
"""
from support.conformance.cases_activation import CASES as ACTIVATION
from support.conformance.cases_array import CASES as ARRAY
from support.conformance.cases_connection import CASES as CONNECTION
from support.conformance.cases_elementwise import CASES as ELEMENTWISE
from support.conformance.cases_links import CASES as LINKS  # noqa: F401  for those who import all tables from here
from support.conformance.cases_loss import CASES as LOSS
from support.conformance.cases_math import CASES as MATH
from support.conformance.cases_normalization import CASES as NORMALIZATION
from support.conformance.cases_pooling import CASES as POOLING
from support.conformance.cases_rnn import CASES as RNN

TABLES = (ACTIVATION, ARRAY, CONNECTION, ELEMENTWISE, LOSS, MATH, NORMALIZATION, POOLING, RNN)
FUNCTIONS = {name: each for table in TABLES for name, each in table.items()}

#: Public links without a case, each with its reason.
LEFT_OUT_LINKS = {
    'TheanoFunction': 'it compiles with Theano, which is given up and has no release for the Pythons that are tested',
}

#: Public functions without a case, each with its reason.
LEFT_OUT_FUNCTIONS: dict[str, str] = {}


def named(key):
    """The function or link that a key of a table speaks of."""
    return key.partition('/')[0]


def public(module):
    """Name -> object of every public callable that chainer defines and a module offers; aliases of one are folded."""
    names = {}
    for name in sorted(dir(module)):
        found = getattr(module, name)
        if not name.startswith('_') and callable(found) and found.__module__.startswith(f'{module.__name__}.'):
            names.setdefault(found, name)
    return {name: found for found, name in names.items()}


def uncovered(module, table, left_out):
    """Names that are neither in a table nor left out."""
    return sorted(set(public(module)) - {named(key) for key in table} - set(left_out))
