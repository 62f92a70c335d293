"""A few iterations in every way of moving a map, for the tools of CUDA that watch each access to memory.

    compute-sanitizer --tool memcheck --error-exitcode 9 python tests/gpu/small_run.py
    compute-sanitizer --tool racecheck --error-exitcode 9 python tests/gpu/small_run.py
    compute-sanitizer --tool initcheck python tests/gpu/small_run.py        # cuDNN's kernels are reported too

Everything is small: under such a tool each kernel takes a hundred times as long. The last line is ``ok``.
"""
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]

sys.path[:0] = [str(TESTS), str(TESTS.parent / 'examples'), str(TESTS.parent)]
import chainer_ooc  # noqa: E402  before chainer

# isort: split
import chainer  # noqa: E402

from support.gpu.gpu_training import train  # noqa: E402

BATCH = {'size': 4, 'side': 16}


def main():
    with chainer.using_config('cudnn_deterministic', True):
        expected = train('hidden', None, 4, batch=BATCH).bits
        for policy, entries in (('swap-all', {}), ('superneurons', {}), ('swap-all', {'host_limit': 1}),
                                ('pooch', {'allocator': 'virtual'})):
            found = train('hidden', policy, 4, batch=BATCH, min_bytes=0, **entries)
            chainer_ooc.reset()
            same = 'the same bits' if found.bits == expected else 'OTHER BITS'
            print(policy, entries, same, f'{found.stats[-1].swapped_in_bytes} bytes swapped in', flush=True)
            if found.bits != expected:
                return 1
    print('ok')
    return 0


if __name__ == '__main__':
    sys.exit(main())
