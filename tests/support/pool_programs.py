"""Programs that use the pool of pages by itself, each in a process of its own, as they set limits."""
import subprocess
import sys
import textwrap

BEGIN = '''
    import contextlib
    import ctypes
    import resource
    import numpy as np
    from chainer_ooc.backends.host import arena, heap
    from chainer_ooc.backends.host.arena import Arena, _library
    from chainer_ooc.backends.host.guard import Guard, data_bytes
    from chainer_ooc.backends.host.headroom import Headroom

    MB = 1 << 20

    def limit(nbytes):
        soft = data_bytes() + nbytes
        resource.setrlimit(resource.RLIMIT_DATA, (soft, soft))

    pool = Arena()
    _library().arena_set_gap(0)
    pool.begin()
    np.zeros(MB, np.uint8)
'''


def check(program, **options):
    """Runs a program in a process of its own, with `options` of `subprocess.run`; gives what it writes."""
    program = textwrap.dedent(BEGIN) + textwrap.dedent(program)
    ended = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=False, **options)
    assert (ended.returncode, ended.stderr) == (0, '')
    return ended.stdout
