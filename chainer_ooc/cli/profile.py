"""``chainer-ooc profile MODEL``: what one training iteration of a model computes, keeps and needs.

The model runs on random images under chainer_ooc, so that what is shown is the trace that plans are made from. Left
out: real data and the optimizer's step, which touch no feature map.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chainer_ooc.cli.answer import Answer, listing
from chainer_ooc.cli.arguments import policy, positive
from chainer_ooc.cli.model import LEAST, NoRoomError, load_model
from chainer_ooc.cli.totals import Totals, totals
from chainer_ooc.errors import OocError
from chainer_ooc.quantities import counted, format_bytes, parse_bytes
from chainer_ooc.report.table import Column, Table, seconds
from chainer_ooc.trace import FeatureMap, Trace

HELP = 'run a model on random images and show its feature maps, times and memory'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the model and the size of its input."""
    parser.add_argument('model', metavar='MODEL', help=(
        'resnet50, alexnet, googlenet, vgg16 (in a checkout), or module:attribute of a callable that returns a '
        'chainer.Chain; the chain is called with images, or with images and labels and returns the loss'))
    parser.add_argument('--batchsize', type=positive, default=8, metavar='N',
                        help='images per iteration (%(default)s)')
    parser.add_argument('--insize', type=positive, default=224, metavar='PIXELS',
                        help='side of the square images (%(default)s)')
    parser.add_argument('--device', default='@numpy', metavar='NAME', help='@numpy or a GPU, @cupy:0 (%(default)s)')
    parser.add_argument('--policy', type=policy, metavar='POLICY', help=(
        f'chainer.config.ooc of the run (keep, and {LEAST} where that does not fit into memory)'))
    parser.add_argument('--top', type=positive, default=10, metavar='N', help='feature maps to show (%(default)s)')
    parser.add_argument('--save', '--out', type=Path, metavar='FILE', help=(
        'write the trace to this file, as JSON: simulate, plan, compare and explain read it'))


def run(arguments: argparse.Namespace) -> Answer:
    """Profiles the model.

    Raises:
        OocError: the model cannot be found or run, or the file cannot be written.
    """
    import chainer

    trace, policy = _record(arguments)
    if arguments.save is not None:
        _write(arguments.save, trace.to_json())
    found = totals(trace, arguments.batchsize, parse_bytes(chainer.config.ooc_min_bytes))
    retained = [each for each in trace.maps if each.retained]  # the others are freed by themselves
    largest = sorted(retained, key=lambda each: -each.nbytes)[:arguments.top]
    facts = {
        'model': arguments.model, 'policy': policy, 'batchsize': arguments.batchsize, 'insize': arguments.insize,
        **asdict(found), 'largest_maps': [_row(trace, each) for each in largest],
    }
    closing = [f'trace written to {arguments.save}'] if arguments.save is not None else []
    if arguments.policy != policy != 'keep':
        closing.insert(0, f'recorded under {policy}, since it does not fit into memory under keep')
    return Answer(facts, [_maps_table(facts['largest_maps'], found.retained_maps), _totals_table(found)], closing)


def _record(arguments: argparse.Namespace) -> tuple[Trace, str]:
    """The trace, and the policy under which there was room to record it."""
    def under(policy: str) -> tuple[Trace, str]:
        return record(arguments.model, arguments.batchsize, arguments.insize, policy, arguments.device), policy

    if arguments.policy is not None:
        return under(arguments.policy)
    try:
        return under('keep')
    except NoRoomError:
        pass
    gc.collect()  # what it had
    return under(LEAST)


def record(name: str, batchsize: int, insize: int, policy: str, device: str = '@numpy') -> Trace:
    """Records a model on random images, on a device as Chainer names it.

    Raises:
        OocError: the model cannot be found or run.
    """
    import chainer

    model = load_model(name)
    model.to_device(device)
    with chainer.using_config('ooc', policy):
        return trace_of(name, lambda: model.iterate(batchsize, insize))


def trace_of(name: str, iterate: Callable[[], object]) -> Trace:
    """Runs as many iterations as it takes until there is a trace, under the configuration that there is.

    Args:
        name: of what runs, for messages.
        iterate: runs one iteration. It must keep no array, which would still live while the next one is recorded.

    Raises:
        OocError: nothing was recorded.
    """
    import chainer

    import chainer_ooc

    try:
        for _ in range(chainer.config.ooc_profile_iterations + 1):  # the trace is there when the one after it begins
            iterate()
        trace = chainer_ooc.trace()
    except BaseException:
        with contextlib.suppress(OocError, MemoryError):  # what it ended with says more than that there is no room
            chainer_ooc.reset()
        raise
    chainer_ooc.reset()
    if trace is None:
        raise OocError(f'{name} left no trace: its backward pass reached no function')
    return trace


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding='utf-8')
    except OSError as error:
        raise OocError(f'cannot write the trace to {file}: {error.strerror}; name another file with --save') from None


def _row(trace: Trace, feature_map: FeatureMap) -> dict[str, Any]:
    producer = feature_map.producer
    return {
        'map': feature_map.id, 'nbytes': feature_map.nbytes, 'shape': list(feature_map.shape),
        'dtype': feature_map.dtype, 'producer': 'the batch' if producer is None else trace.calls[producer].label,
        'last_forward_use': feature_map.last_forward_use, 'backward_uses': list(feature_map.backward_uses),
    }


def _maps_table(rows: list[dict[str, Any]], count: int) -> Table:
    columns = [
        Column('map', 'map', right=True), Column('nbytes', 'size', format_bytes, right=True),
        Column('shape', 'shape', lambda shape: 'x'.join(map(str, shape))), Column('dtype', 'type'),
        Column('producer', 'made by'), Column('last_forward_use', 'last read in call', right=True),
        Column('backward_uses', 'read in backward at', lambda uses: ' '.join(map(str, uses))),
    ]
    return Table(columns, rows, f'the largest {len(rows)} of {counted(count, "feature map")} kept for backward')


def _totals_table(found: Totals) -> Table:
    return listing('', 'one iteration', {
        'feature maps': f'{found.maps}, {found.retained_maps} of them kept for backward',
        'bytes kept for backward':
            f'{format_bytes(found.retained_bytes)}, {found.retained_bytes_per_image / 1e6:.1f} MB per image',
        'forward': f'{seconds(found.forward_seconds)} in {counted(found.calls, "call")}',
        'backward': f'{seconds(found.backward_seconds)} in {counted(found.steps, "step")}',
        'peak, all maps kept': format_bytes(found.kept_bytes),
        'largest working set': f'{format_bytes(found.working_set_bytes)} at {found.working_set_at}',
    })
