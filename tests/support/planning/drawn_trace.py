"""A trace of three calls for tests of the command line, and its timeline under swap-all.

Three calls of 1 s, three steps of 2 s, a link of 1 MB/s; map 0 is the batch, which the program holds. In-core it takes
9 s and 13 MB. Under swap-all within 9 or 10 MB, call 2 waits for the memory of map 1, and step 4 for its way back::

    seconds   0  1  2           6  7     9           13    15    17
    compute   [0][1] . . . . . .[2][ 3  ] . . . . . . [ 4  ][ 5  ]
    copy-out         [ map 1   ]
    copy-in                              [ map 1    ]

The best that is possible within these budgets is to make map 1 again, which takes 10 s in all.
"""
import dataclasses

from chainer_ooc.trace import Call, FeatureMap, Step, Trace

MB = 10**6


def a_map(map_id, megabytes, producer, last_forward_use, use, **attributes):
    usual = FeatureMap(map_id, megabytes * MB, producer, False, True, False, last_forward_use, (use,), (8, 5), 'uint8')
    return dataclasses.replace(usual, **attributes)


TRACE = Trace(
    device='host',
    calls=tuple(Call(index, f'Layer{index}', (index,), (index + 1 if index < 2 else -1,), (), 1.0,
                     peak * MB, repeatable=True) for index, peak in enumerate([4, 2, 5])),
    steps=tuple(Step(position, 5 - position, (5 - position,), 2.0, peak * MB, 0)
                for position, peak in [(3, 5), (4, 0), (5, 0)]),
    maps=(a_map(0, 1, None, 0, 5, foreign=True), a_map(1, 4, 0, 1, 4), a_map(2, 2, 1, 2, 3)),
    seconds=9.0, write_bytes_per_second=1e6, read_bytes_per_second=1e6, machine='a machine',
    standing_forward_bytes=MB, standing_backward_bytes=MB,
    versions={'chainer': '7.8.1', 'numpy': '2', 'python': '3', 'chainer_ooc': '0'})
