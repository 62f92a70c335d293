"""The applier alone: every shape of hunk, and every text that does not fit."""
import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainer_ooc.errors import ForkError
from chainer_ooc.fork.diff import apply, parse

HEADER = 'diff --git a/chainer/x.py b/chainer/x.py\n--- a/chainer/x.py\n+++ b/chainer/x.py\n'
LINES = st.lists(st.sampled_from(['a\n', 'b\n', '\n', 'form\x0cfeed\n', '--- a/x\n', '+++ b/x\n', '@@ -1 +1 @@\n']))


def patched(text, hunks, header=HEADER):
    diff, = parse(header + hunks, '0001-x.patch')
    return apply(diff, text, '0001-x.patch')


@pytest.mark.parametrize(('hunks', 'expected'), [
    ('@@ -2 +2 @@ def f():\n-b\n+B\n', 'a\nB\nc\n'),
    ('@@ -0,0 +1,2 @@\n+x\n+y\n', 'x\ny\na\nb\nc\n'),
    ('@@ -1,0 +2 @@\n+x\n', 'a\nx\nb\nc\n'),
    ('@@ -3,0 +4 @@\n+x\n', 'a\nb\nc\nx\n'),
    ('@@ -1,2 +0,0 @@\n-a\n-b\n', 'c\n'),
    ('@@ -1 +1 @@\n-a\n+A\n@@ -3 +3,2 @@\n-c\n+C\n+d\n', 'A\nb\nC\nd\n'),
    ('@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n', 'a\nB\nc\n'),
])
def test_hunks_are_applied_at_their_lines(hunks, expected):
    assert patched('a\nb\nc\n', hunks) == expected


def test_a_new_file_is_made_of_its_lines():
    header = 'diff --git a/chainer/x.py b/chainer/x.py\nnew file mode 100644\n--- /dev/null\n+++ b/chainer/x.py\n'
    diff, = parse(f'0001 x: reason\n\n{header}@@ -0,0 +1,2 @@\n+a\n+b\n', '0001-x.patch')
    assert diff.is_new
    assert apply(diff, '', '0001-x.patch') == 'a\nb\n'


def test_files_of_one_patch_are_told_apart():
    other = HEADER.replace('x.py', 'y.py')
    hunk = '@@ -1 +1 @@\n-a\n+b\n'
    assert [diff.path for diff in parse(f'prose\n{HEADER}{hunk}{other}{hunk}', 'p')] == ['chainer/x.py', 'chainer/y.py']


@pytest.mark.parametrize('hunks', [
    '@@ -1 +1 @@\n-b\n+B\n',  # another line is there
    '@@ -2 +3 @@\n-b\n+B\n',  # the place in the new text does not follow
    '@@ -4 +4 @@\n-d\n+D\n',  # past the end
    '@@ -2 +2 @@\n-b \n+B\n',  # a blank too many
])
def test_a_hunk_that_does_not_fit_is_refused_with_patch_file_and_line(hunks):
    with pytest.raises(ForkError, match=r'0001-x\.patch does not fit chainer/x\.py at line \d.*regenerate'):
        patched('a\nb\nc\n', hunks)


@pytest.mark.parametrize(('text', 'message'), [
    ('no diff at all\n', 'no "diff --git" line'),
    ('diff --git a/x b/y\nrename from x\nrename to y\n', "'rename from x'"),
    ('diff --git a/x b/x\nold mode 100644\nnew mode 100755\n', "'old mode 100644'"),
    ('diff --git a/x b/x\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n', 'without a'),
    (HEADER + '@@ -1,2 +1 @@\n-a\n', 'inside the hunk'),
    (HEADER + '@@ -x +1 @@\n-a\n', 'cannot be read'),
    (HEADER + '@@ -3 +3 @@\n-c\n+C\n\\ No newline at end of file\n', 'No newline'),
])
def test_what_cannot_be_applied_is_refused_by_name(text, message):
    with pytest.raises(ForkError, match=message):
        parse(text, '0001-x.patch')


@given(LINES, LINES)
def test_any_two_texts_are_bridged_by_their_diff(old, new):
    hunks = ''.join(list(difflib.unified_diff(old, new, n=0))[2:])
    assert patched(''.join(old), hunks) == ''.join(new)
