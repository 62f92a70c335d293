"""The Chainer fork: the patches of ``patches/``, applied in memory when chainer is imported.

Why in memory: Chainer is no longer released, its last version works on no Python from 3.12 on and no NumPy from 2.0
on, and it lacks the few seams that out-of-core execution needs. A patched copy beside the installed one would be a
second Chainer to keep and to explain; editing site-packages would change other programs. Here the installed 7.8.1 stays
as it is, and what differs is readable as a short series of diffs.

    import chainer_ooc            install() puts the finder in front of sys.meta_path
    import chainer                finder: where? which version? every file as expected?
      import chainer.functions    a patch touches it: read, verify, apply, compile, execute
      import chainer.reporter     no patch: Python's own way, .pyc and all

`hook` has the finder, `checks` what must hold, `series` the patches, and `diff` applies one.
"""
from chainer_ooc.fork.checks import check
from chainer_ooc.fork.hook import install

__all__ = ['check', 'install']
