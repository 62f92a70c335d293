"""``chainer-ooc profile MODEL``: what one training iteration computes, keeps and needs.

It runs under chainer_ooc, so that what is shown is the trace that plans are made from: the user's own training, or a
model with the user's batch, or a model on random images. Left out for the last two, unless an optimizer is named: its
state, which touches no feature map.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chainer_ooc.cli import arguments as common
from chainer_ooc.cli.answer import Answer, UsageError, listing, maker_of, named_maker, trying
from chainer_ooc.cli.model import Model, ModelTooLargeError
from chainer_ooc.cli.prediction import batch_of
from chainer_ooc.cli.program import Program, load
from chainer_ooc.cli.stage import stage
from chainer_ooc.cli.totals import Totals, least_of, totals
from chainer_ooc.errors import WORKSPACE, InfeasibleBudgetError
from chainer_ooc.profiling.profile import LEAST, configured
from chainer_ooc.quantities import counted, format_bytes, format_enough, parse_bytes
from chainer_ooc.report.table import Column, Table, seconds
from chainer_ooc.trace import FeatureMap, Trace

HELP = 'run a training, or a model, and show its feature maps, times and memory'
_OF_IMAGES = {'batchsize': 8, 'insize': 224, 'device': '@numpy'}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what runs, and under which settings."""
    parser.add_argument('model', metavar='MODEL', help=(
        'resnet50, alexnet, googlenet, vgg16 (in a checkout), or module:attribute of a callable that returns a '
        'Trainer, an Updater, a model together with its batch, (model, (x, t)), or a chainer.Chain alone: that is '
        'called with random images, or with images and labels and returns the loss'))
    parser.add_argument('--batchsize', '--batch', type=common.positive, metavar='N', help=(
        f'of a model alone: images per iteration ({_OF_IMAGES["batchsize"]})'))
    parser.add_argument('--insize', type=common.positive, metavar='PIXELS', help=(
        f'of a model alone: side of the square images ({_OF_IMAGES["insize"]})'))
    parser.add_argument('--device', metavar='NAME', help=(
        f'of a model alone: @numpy or a GPU, @cupy:0 ({_OF_IMAGES["device"]})'))
    parser.add_argument('--optimizer', metavar='NAME', help=(
        'of a model: a class of chainer.optimizers that updates it, such as MomentumSGD; its state is in the trace '
        'then (none)'))
    parser.add_argument('--policy', type=common.policy, metavar='POLICY', help=(
        f'chainer.config.ooc of the run (keep, and {LEAST} where that does not fit into memory)'))
    parser.add_argument('--budget', type=common.budget, metavar='BYTES',
                        help='chainer.config.ooc_budget of the run (what is free)')
    parser.add_argument('--workspace', type=common.workspace, metavar='BYTES',
                        help='chainer.config.ooc_workspace of the run (none)')
    parser.add_argument('--top', type=common.positive, default=10, metavar='N',
                        help='feature maps to show (%(default)s)')
    parser.add_argument('--save', '--out', type=Path, metavar='FILE', help=(
        'write the trace to this file, as JSON: simulate, plan, compare and explain read it'))


def run(arguments: argparse.Namespace) -> Answer:
    """Profiles it.

    Raises:
        OocError: it cannot be found or run, or the file cannot be written.
    """
    import chainer

    with stage(f'making {arguments.model}'):
        program = load(arguments.model, arguments.optimizer)
    images = _images(arguments, program)
    with configured(ooc_budget=arguments.budget, ooc_workspace=arguments.workspace):
        trace, policy = _record(program, images, arguments.policy)
    if arguments.save is not None:
        with trying(f'write the trace to {arguments.save}', 'another file with --save'):
            arguments.save.write_text(trace.to_json(), encoding='utf-8')
    batchsize = images['batchsize'] or batch_of(trace)
    min_bytes = parse_bytes(chainer.config.ooc_min_bytes)
    found, least = totals(trace, batchsize, min_bytes), least_of(trace, min_bytes)
    retained = [each for each in trace.maps if each.retained]  # the others are freed by themselves
    largest = sorted(retained, key=lambda each: -each.nbytes)[:arguments.top]
    facts = {
        'model': arguments.model, 'policy': policy, 'batchsize': batchsize, 'insize': images['insize'],
        **asdict(found), 'floor_bytes': least.floor_bytes, 'workspace_floor_bytes': least.workspace_floor_bytes,
        'doubt': least.doubt, 'largest_maps': [_row(trace, each) for each in largest],
    }
    closing = [f'trace written to {arguments.save}'] if arguments.save is not None else []
    if arguments.policy != policy != 'keep':
        closing.insert(0, f'recorded under {policy}, since it does not fit into memory under keep')
    if arguments.budget is not None and arguments.budget < least.floor_bytes:
        closing.append(f'the budget of {format_bytes(arguments.budget)} is below the smallest: a training with it is '
                       'refused once its first iterations are recorded')
    if least.doubt:
        closing.append(f'the smallest budget is what is needed as far as is known; {least.doubt}')
    tables = [_maps_table(facts['largest_maps'], found.retained_maps), _totals_table(found, least, program.is_updated)]
    return Answer(facts, tables, closing)


def _images(arguments: argparse.Namespace, program: Model | Program) -> dict[str, Any]:
    """The values of the options that are for a model alone, each None for what brings its own batch.

    Raises:
        UsageError: one is given for that.
    """
    given = {name: getattr(arguments, name) for name in _OF_IMAGES}
    if isinstance(program, Model):
        return {name: _OF_IMAGES[name] if value is None else value for name, value in given.items()}
    for name, value in given.items():
        if value is not None:
            raise UsageError(f'{program.name} brings its own batch and device; leave --{name} out, which '
                             'is for a model alone')
    return given


def _record(program: Model | Program, images: dict[str, Any], policy: str | None) -> tuple[Trace, str]:
    """The trace, and the policy under which there was room to record it."""
    if policy is not None:
        return _under(policy, program, **images), policy
    with contextlib.suppress(ModelTooLargeError):
        return _under('keep', program, **images), 'keep'
    gc.collect()  # what it had
    return _under(LEAST, program, **images), LEAST


def _under(policy: str, program: Model | Program, batchsize: int, insize: int, device: str) -> Trace:
    with stage(f'recording {program.name} under {policy}'):
        if isinstance(program, Program):
            return program.record(policy)
        program.to_device(device)
        return program.record(policy, batchsize, insize)


def record(name: str, batchsize: int, insize: int) -> Trace:
    """Records what is named, under a policy for which there is room; a model alone on random images, on the host.

    Raises:
        OocError: it cannot be found or run.
    """
    return _record(load(name), {**_OF_IMAGES, 'batchsize': batchsize, 'insize': insize}, None)[0]


def _row(trace: Trace, feature_map: FeatureMap) -> dict[str, Any]:
    return {
        'map': feature_map.id, 'nbytes': feature_map.nbytes, 'shape': list(feature_map.shape),
        'dtype': feature_map.dtype, **maker_of(trace, feature_map.id),
        'last_forward_use': feature_map.last_forward_use, 'backward_uses': list(feature_map.backward_uses),
    }


def _maps_table(rows: list[dict[str, Any]], count: int) -> Table:
    columns = [
        Column('map', 'map', right=True), Column('nbytes', 'size', format_bytes, right=True),
        Column('shape', 'shape', lambda shape: 'x'.join(map(str, shape))), Column('dtype', 'type'),
        Column('maker', 'made by'),
    ]
    shown = [{**row, 'maker': named_maker(row)} for row in rows]
    return Table(columns, shown, f'the largest {len(rows)} of {counted(count, "feature map")} kept for backward')


def _totals_table(found: Totals, least: InfeasibleBudgetError, is_updated: bool) -> Table:
    beside = 'with parameters, gradients and optimizer' if is_updated else 'with parameters and gradients'
    each_bytes = found.retained_bytes_per_image
    per_image = '' if each_bytes is None else f', {format_bytes(round(each_bytes))} per image'
    return listing('one iteration', {
        'feature maps': f'{found.maps}, {found.retained_maps} of them kept for backward',
        'bytes kept for backward': format_bytes(found.retained_bytes) + per_image,
        'forward': f'{seconds(found.forward_seconds)} in {counted(found.calls, "call")}',
        'backward': f'{seconds(found.backward_seconds)} in {counted(found.steps, "step")}',
        'peak, all maps kept': f'{format_enough(found.kept_bytes)}, {beside}',
        'largest working set': f'{format_bytes(found.working_set_bytes)} at {found.working_set_at}',
        'smallest budget': f'{format_enough(least.floor_bytes)}, {beside}',
        'with a workspace': None if least.workspace_floor_bytes is None else
                            f'about {format_enough(least.workspace_floor_bytes)}: --workspace {WORKSPACE}',
    })
