"""Memory: which of cuDNN's engines a limit of scratch leaves to a network's convolutions, without a GPU.

    python benchmarks/engines.py
    python benchmarks/engines.py --networks alexnet --batchsize 512 --dtype float16 --json engines.json

cuDNN's heuristics order its engines by how fast they should be on a GPU that is told to them by its properties; here
those of an H200. Each convolution of a network, forward and for both gradients, is asked about as training asks
(`plan.make`): the first engine that keeps to the settings is taken. *First* counts the convolutions that get the engine
which they would get without a limit, *tensor cores* those whose engine uses them. What an engine takes in time is not
told by this.

Needs nvidia-cudnn-frontend and nvidia-cudnn-cu13 or -cu12, and without a driver for NVIDIA's GPUs a C compiler: cuDNN
does not load where there is no libcuda, so an empty one is made.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from surroundings import ARCHITECTURES, make_parser, positive, publish

# isort: split
import numpy as np
from chainer.utils.conv import get_conv_outsize

from chainer_ooc.kernels.cudnn import library, plan
from chainer_ooc.kernels.cudnn.operations import SMALL_WORKSPACE_BYTES, Convolution, Port
from chainer_ooc.kernels.cudnn.settings import PlanSettings
from chainer_ooc.report.table import Column, Table, megabytes, plain
from layers import Layer, layers_of

#: An H200: of its architecture (compute capability 9.0, CUDA's programming guide) and of its data sheet.
H200 = {
    'deviceName': 'NVIDIA H200', 'deviceVer': 900, 'driverVer': 13000, 'cudaDeviceId': 0, 'pciDeviceId': 0,
    'isTccDriver': 0, 'supportCoopLaunch': 1, 'multiProcessorCount': 132, 'smClockRateKHz': 1_980_000,
    'memClockRateKHz': 3_201_000, 'memoryBusWidth': 6144, 'totalGlobalMem': 139 << 30, 'l2CacheSize': 50 << 20,
    'warpSize': 32, 'maxCtasPerSM': 32, 'maxThreadsPerSM': 2048, 'maxThreadsPerBlock': 1024,
    'maxBlockSize': [1024, 1024, 64], 'maxGridSize': [2**31 - 1, 65535, 65535], 'regsPerBlock': 65536,
    'maxRegistersPerSM': 65536, 'maxSharedMemoryPerSM': 228 << 10, 'maxSharedMemoryPerBlock': 48 << 10,
    'maxSharedMemoryPerBlockOptin': 227 << 10, 'reservedSharedMemoryPerBlock': 1 << 10}
#: What cuDNN wants of libcuda when it is loaded, and never calls here.
DRIVER_CALLS = ('cuGetErrorString', 'cuModuleGetFunction', 'cuModuleLoadData', 'cuModuleUnload',
                'cuTensorMapEncodeIm2col', 'cuTensorMapEncodeTiled')
NO_DEVICE = 100

WAYS = {Port.Y: 'forward', Port.X: 'gradient of the input', Port.W: 'gradient of the filter'}
COLUMNS = (
    Column('network', 'network'), Column('dtype', 'dtype'), Column('way', 'convolutions'),
    Column('count', 'count', plain, right=True), Column('limit', 'limit'),
    Column('first_count', 'first', plain, right=True), Column('tensor_core_count', 'tensor cores', plain, right=True),
    Column('most_bytes', 'most scratch', megabytes, right=True),
    Column('most_arrays_bytes', 'its arrays', megabytes, right=True),
)

# An engine's name, and the bytes of its scratch.
Engine = tuple[str, int]


def options_of(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line, or those given."""
    parser = make_parser(__doc__)
    parser.add_argument('--networks', nargs='+', choices=sorted(ARCHITECTURES), default=['resnet50'], metavar='NAME',
                        help=', '.join(sorted(ARCHITECTURES)) + ' (resnet50)')
    parser.add_argument('--batchsize', type=positive, default=640, metavar='N', help='images (%(default)s)')
    parser.add_argument('--crop', type=positive, default=224, metavar='PIXELS', help='side of an image (%(default)s)')
    parser.add_argument('--dtype', choices=('float32', 'tf32', 'float16'), nargs='+', default=['float32', 'tf32'],
                        help="'tf32' is float32 under use_cudnn_tensor_core = 'always' (float32 tf32)")
    parser.add_argument('--not-deterministic', action='store_true', help='as without cudnn_deterministic')
    return parser.parse_args(given)


def main() -> None:
    arguments = options_of()
    cudnn = loaded()
    device = cudnn.create_device_properties(json.dumps(H200))
    rows = [row for network in arguments.networks for dtype in arguments.dtype
            for row in asked(cudnn, device, network, dtype, arguments)]
    publish(Table(COLUMNS, rows, f'Engines of cuDNN {cudnn.backend_version_string()} on an H200, batch '
                  f'{arguments.batchsize}'), arguments)


def asked(cudnn: Any, device: Any, network: str, dtype: str, arguments: argparse.Namespace
          ) -> Iterator[dict[str, Any]]:
    """The rows of a network's convolutions: for each way a row without a limit, with the usual one, and with 8 MiB."""
    settings = PlanSettings(None, not arguments.not_deterministic, dtype != 'float32')
    convolutions = {layer: count for layer, count in layers_of(network, arguments.crop).items() if layer.weights}
    for result, way in WAYS.items():
        found = []
        for layer, count in convolutions.items():
            operation = operation_of(layer, arguments.batchsize, 'float16' if dtype == 'float16' else 'float32', result)
            if result == Port.X and layer.first:
                continue
            without = engines(cudnn, device, operation, replace(settings, tensor_cores=False))
            found.append((operation, count, engines(cudnn, device, operation, settings), {name for name, _ in without}))
        limits = {'none': lambda operation: float('inf'), 'usual': Convolution.usual_workspace_bytes,
                  '8 MiB': lambda operation: SMALL_WORKSPACE_BYTES}
        for limit, bytes_of in limits.items():
            row = {'network': network, 'dtype': dtype, 'way': way, 'limit': limit, 'count': 0, 'first_count': 0,
                   'tensor_core_count': 0, 'most_bytes': 0, 'most_arrays_bytes': 0}
            for operation, count, suggested, plain_engines in found:
                name, nbytes = next(each for each in suggested if each[1] <= bytes_of(operation))
                row['count'] += count
                row['first_count'] += count * (name == suggested[0][0])
                row['tensor_core_count'] += count * (name not in plain_engines)
                if nbytes > row['most_bytes']:
                    row['most_bytes'], row['most_arrays_bytes'] = nbytes, arrays_bytes(operation)
            yield row


def engines(cudnn: Any, device: Any, operation: Convolution, settings: PlanSettings) -> list[Engine]:
    """What cuDNN suggests under the settings, the first that it would take first."""
    graph = plan.suggested(
        cudnn, operation, settings, [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK], device_property=device)
    found = []
    for number in range(graph.get_execution_plan_count()):
        try:
            graph.build_plan_at_index(number)
        except cudnn.cudnnGraphNotSupportedError:  # ruled out by the settings
            continue
        found.append((graph.get_plan_name_at_index(number), int(graph.get_workspace_size_plan_at_index(number))))
    return found


def operation_of(layer: Layer, batchsize: int, dtype: str, result: Port) -> Convolution:
    """A layer as cuDNN is asked about it."""
    assert layer.weights is not None
    given = dict(layer.geometry)
    windows = tuple(given['pad']), tuple(given['stride']), tuple(given['dilate'])
    extents = tuple(get_conv_outsize(size, kernel, stride, pad, d=dilate) for size, kernel, pad, stride, dilate in zip(
        layer.image[1:], layer.weights[2:], *windows, strict=True))
    return Convolution(result, (batchsize, *layer.image), layer.weights, (batchsize, layer.weights[0], *extents),
                       *windows, dtype)


def arrays_bytes(operation: Convolution) -> int:
    """Of a convolution's three arrays."""
    shapes = operation.x_shape, operation.w_shape, operation.y_shape
    return sum(int(np.prod(shape)) for shape in shapes) * np.dtype(operation.dtype).itemsize


def loaded() -> Any:
    """The module of cuDNN, also where there is no driver."""
    try:
        ctypes.CDLL('libcuda.so.1')
    except OSError:
        _load_empty_driver()
    try:
        return library.find()
    except (ImportError, OSError, RuntimeError) as error:
        raise SystemExit(f'cuDNN cannot be asked ({error}); '
                         'pip install nvidia-cudnn-frontend nvidia-cudnn-cu13') from None


def _load_empty_driver() -> None:
    """Loads a libcuda whose calls say that there is no device; cuDNN takes what is loaded under that name."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = (pathlib.Path(folder) / name for name in ('driver.c', 'libcuda.so.1'))
        source.write_text('\n'.join(f'int {name}(void) {{ return {NO_DEVICE}; }}' for name in DRIVER_CALLS))
        try:
            subprocess.run(['cc', '-shared', '-fPIC', '-Wl,-soname,libcuda.so.1', '-o', made, source], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f'a C compiler is needed where there is no NVIDIA driver ({error})') from None
        ctypes.CDLL(str(made), ctypes.RTLD_GLOBAL)


if __name__ == '__main__':
    main()
