"""What there is of CuPy, CUDA and cuDNN on this machine, and how to get what is missing.

For ``chainer-ooc doctor``. Each question is asked on its own, as any part may be missing or broken, and a call that
raises is an answer too. Advice stops at what comes first: without a driver, missing libraries are not reported.

Left out: whether a training runs, which the doctor tries.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

#: The names under which CuPy is distributed; only one of them may be installed.
PACKAGES = ('cupy', 'cupy-cuda13x', 'cupy-cuda12x', 'cupy-cuda11x')
LIBRARIES = ('cublas', 'cufft', 'curand', 'cusolver', 'cusparse')


@dataclass(frozen=True)
class CudaPresence:
    """What was found.

    Attributes:
        packages: those installed of `PACKAGES`.
        cupy: its version; None if it is not installed or cannot be imported, and then all below is None or empty.
        built_for: the version of CUDA that CuPy was made for, such as '13.2'.
        driver: the newest version of CUDA that the driver supports; None without a driver.
        gpus: in the order of their numbers, each with name, compute_capability such as '9.0', total_bytes, and
            free_bytes, which is None if CUDA does not tell.
        missing: libraries of CUDA that cannot be loaded; not looked for without a GPU.
        cudnn: version of the library.
        cudnn_frontend: version of the package that Chainer's functions reach it through.
        cuda_bindings: version of the package that virtual addresses are managed through.
        warnings: what is missing, each with the next step.
    """

    packages: tuple[str, ...] = ()
    cupy: str | None = None
    built_for: str | None = None
    driver: str | None = None
    gpus: tuple[dict[str, Any], ...] = ()
    missing: tuple[str, ...] = ()
    cudnn: str | None = None
    cudnn_frontend: str | None = None
    cuda_bindings: str | None = None
    warnings: tuple[str, ...] = ()


def examine() -> dict[str, Any]:
    """A `CudaPresence`, JSON-ready. It creates a context on each GPU, which stays until the process ends."""
    packages = tuple(name for name in PACKAGES if version(name) is not None)
    if not packages:
        return asdict(CudaPresence())
    cupy, error = asked(importlib.import_module, 'cupy')
    if cupy is None:
        again = f'CuPy is installed ({", ".join(packages)}) and cannot be imported ({error}): install it again'
        return asdict(CudaPresence(packages, warnings=(*_too_many(packages), again)))
    return asdict(_examine(cupy, packages))


def _examine(cupy: Any, packages: tuple[str, ...]) -> CudaPresence:
    built_for, _ = asked(lambda: cupy.cuda.driver.get_build_version())
    driver, _ = asked(lambda: cupy.cuda.runtime.driverGetVersion())
    count, error = asked(lambda: cupy.cuda.runtime.getDeviceCount())
    gpus = tuple(filter(None, (asked(_gpu, cupy, number)[0] for number in range(count or 0))))
    missing = tuple(_missing(cupy)) if gpus else ()
    cudnn, cudnn_error = asked(lambda: importlib.import_module('cudnn').backend_version())
    cupy_version = asked(getattr, cupy, '__version__')[0] or 'of an unknown version'
    found = CudaPresence(
        packages, cupy_version, cuda_version(built_for), cuda_version(driver), gpus, missing, _of_cudnn(cudnn),
        version('nvidia-cudnn-frontend'), version('cuda-bindings'))
    warnings = [*_too_many(packages), *_about_gpus(found, error), *_about_libraries(found, cudnn_error)]
    return replace(found, warnings=tuple(warnings))


def asked(call: Callable[..., Any], *arguments: object) -> tuple[Any, str]:
    """What a call gives and '', or None and what it raised."""
    try:
        return call(*arguments), ''
    except Exception as error:  # of CuPy, CUDA, the loader of libraries, or a module that is something else
        return None, ' '.join(f'{type(error).__name__}: {error}'.split())


def version(distribution: str) -> str | None:
    """Of an installed package; None if it is not."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu(cupy: Any, number: int) -> dict[str, Any]:
    described = gpu_of(cupy.cuda.runtime.getDeviceProperties(number))
    memory, _ = asked(lambda: cupy.cuda.Device(number).mem_info)
    return {**described, 'free_bytes': None if memory is None else int(memory[0])}


def gpu_of(properties: dict[str, Any]) -> dict[str, Any]:
    """Name, compute capability and memory, of what CUDA says of a GPU."""
    name = properties['name']
    return {'name': name.decode() if isinstance(name, bytes) else str(name),
            'compute_capability': f'{properties["major"]}.{properties["minor"]}',
            'total_bytes': int(properties['totalGlobalMem'])}


def _missing(cupy: Any) -> list[str]:
    missing = [name for name in LIBRARIES if asked(getattr, cupy.cuda, name)[1]]
    return missing + (['nvrtc'] if asked(lambda: cupy.cuda.nvrtc.getVersion())[1] else [])


def _too_many(packages: tuple[str, ...]) -> list[str]:
    line = (f'several packages hold CuPy ({", ".join(packages)}) and overwrite each other: uninstall all of them, and '
            'install one')
    return [line] if len(packages) > 1 else []


def _about_gpus(found: CudaPresence, error: str) -> list[str]:
    if found.gpus:
        return []
    if found.driver is None:
        line = (f'CuPy {found.cupy} is installed, but not the driver of a GPU, so that Chainer runs on the CPU: '
                "install NVIDIA's driver, or use a machine that has it")
    elif found.built_for and _major(found.driver) < _major(found.built_for):
        line = (f'the driver supports CUDA {found.driver} and CuPy {found.cupy} was made for CUDA {found.built_for}: '
                f'install a newer driver, or cupy-cuda{_major(found.driver)}x in its place')
    else:
        line = (f'there is a driver, and no GPU that CuPy {found.cupy} can use ({error or "it counts none"}): look at '
                'nvidia-smi and at the environment variable CUDA_VISIBLE_DEVICES')
    return [line]


def _about_libraries(found: CudaPresence, cudnn_error: str) -> list[str]:
    if not found.gpus:
        return []
    major = _major(found.built_for or found.driver or '13')
    lines = []
    if found.missing:
        lines.append(f'libraries of CUDA are missing ({", ".join(found.missing)}): '
                     f'pip install "cupy-cuda{major}x[ctk]"')
    if found.cudnn is None:
        lines.append(f'cuDNN cannot be used ({cudnn_error}), so that convolutions take a slow way: '
                     f'pip install nvidia-cudnn-frontend nvidia-cudnn-cu{major}')
    if found.cuda_bindings is None:
        lines.append("cuda-bindings is missing, which chainer.config.ooc_allocator = 'virtual' needs: "
                     f'pip install "cuda-bindings=={major}.*"')
    return lines


def _major(of_cuda: str) -> int:
    return int(of_cuda.split('.')[0])


def cuda_version(number: int | None) -> str | None:
    """'13.2' of 13020; None of 0, which is what CUDA says without a driver."""
    return f'{number // 1000}.{number % 1000 // 10}' if number else None


def _of_cudnn(number: int | None) -> str | None:
    """'9.28.0' of 92800."""
    return f'{number // 10000}.{number % 10000 // 100}.{number % 100}' if number else None
