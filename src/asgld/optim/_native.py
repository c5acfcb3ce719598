"""The CPU kernel: finds it, says why not when not, and calls it.

The kernel is plain C (`native/` in the source tree) behind a C interface, so it depends on neither
Python's nor torch's ABI. The package holds one shared object per instruction set, and the best that
torch reports the processor to have is loaded. They give the same bits. The kernel works on threads
of the OpenMP runtime that torch has loaded already, so both share one pool.

The environment variable ``ASGLD_NATIVE_DIR`` names another directory to take the shared objects
from, for instance that of a build by hand:

    cmake -S . -B build/native && cmake --build build/native
    ASGLD_NATIVE_DIR=build/native python ...
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# From what torch reports to what serves, best first. Whatever is not named runs the portable build.
_BUILDS = {
    "AVX512": ("avx512", "avx2", "portable"),
    "AVX2": ("avx2", "portable"),
}
_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
_WORDS_PER_TENSOR = 9
_OPTIONS = struct.Struct("8dQ4i")

_library: ctypes.CDLL | None = None
_build: str | None = None
_reason: str | None = None


def capability() -> str:
    """Return the name of the build in use, or "none"."""
    return _build or "none" if unavailable_reason() is None else "none"


def unavailable_reason() -> str | None:
    """Return why the kernel cannot serve, or None where it can."""
    loaded = load()
    return loaded if isinstance(loaded, str) else None


def load() -> ctypes.CDLL | str:
    """Return the library, loading it at the first call, or the reason why there is none."""
    if _library is None and _reason is None:
        _load_first(available_builds())
    return _library or _reason or "not loaded"


def available_builds() -> list[str]:
    """Return the builds that are installed and that this processor runs, best first."""
    wanted = _BUILDS.get(torch.backends.cpu.get_cpu_capability(), ("portable",))
    return [build for build in wanted if _find(build) is not None]


def set_build(build: str | None) -> None:
    """Use one of `available_builds()`; None goes back to the best. For tests and benchmarks."""
    global _library, _build, _reason
    if build is not None and build not in available_builds():
        raise ValueError(f"build={build!r}: available here are {available_builds()}")
    _library = _build = _reason = None
    _load_first([build] if build else available_builds())


def _load_first(builds: Sequence[str]) -> None:
    global _library, _build, _reason
    _reason = "the kernel was not built, for want of a C compiler when asgld was installed"
    for build in builds:
        path = _find(build)
        assert path is not None
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            _reason = f"{path.name} does not load: {error}"
            continue
        library.asgld_step.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p]
        library.asgld_step.restype = None
        _library, _build, _reason = library, build, None
        return


def _find(build: str) -> Path | None:
    # An editable installation has the sources in one directory of the package's path and what
    # CMake installed in another.
    package = sys.modules[__package__ or "asgld.optim"]
    directories = [os.environ["ASGLD_NATIVE_DIR"]] if "ASGLD_NATIVE_DIR" in os.environ else []
    for directory in directories or list(package.__path__):
        path = Path(directory) / f"libasgld_{build}.so"
        if path.is_file():
            return path
    return None


def step(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    sums: Sequence[Tensor],
    streams: Sequence[int],
    steps: Sequence[int],
    layouts: Sequence[tuple[int, int, int] | None] | None = None,
    *,
    lr: float,
    alpha: float,
    beta: float,
    sigma: float,
    delta: float,
    d_init: float,
    weight_decay: float = 0.0,
    seed: int = 0,
    maximize: bool = False,
    stochastic_rounding: bool = False,
    grad_scale: float | None = None,
) -> None:
    """Take one step on a list of tensors, in place, in one call.

    Args:
        params, grads, sums: contiguous CPU tensors. Gradients have their parameter's dtype; sums
            have any floating dtype, but float64 where the parameter does.
        streams, steps: which noise; steps is also k in D.
        layouts: (offset, row_length, row_stride) of each shard in its whole parameter; None, or an
            entry None, for a parameter that is whole.
        grad_scale: what the gradients were multiplied by.
    """
    library = load()
    if isinstance(library, str):
        raise RuntimeError(f"the native kernel cannot serve: {library}")
    table = array("Q")
    for i, (param, grad, total) in enumerate(zip(params, grads, sums, strict=True)):
        count = param.numel()
        if not (
            param.is_contiguous()
            and grad.is_contiguous()
            and total.is_contiguous()
            and grad.dtype == param.dtype
            and grad.numel() == total.numel() == count
            and param.is_cpu
            and grad.is_cpu
            and total.is_cpu
        ):
            raise ValueError(
                f"params[{i}], grads[{i}], sums[{i}]: need contiguous CPU tensors of one size, "
                "gradients in their parameter's dtype"
            )
        offset, row_length, row_stride = (layouts[i] if layouts else None) or (0, count or 1, 0)
        table.extend(
            (
                param.data_ptr(),
                grad.data_ptr(),
                total.data_ptr(),
                count,
                offset,
                row_length,
                row_stride,
                streams[i] | steps[i] << 32,
                _TYPES[param.dtype] | _TYPES[total.dtype] << 32,
            )
        )
    options = _OPTIONS.pack(
        lr,
        alpha,
        beta,
        sigma,
        delta,
        d_init,
        weight_decay,
        1.0 if grad_scale is None else 1.0 / grad_scale,
        seed,
        maximize,
        stochastic_rounding,
        torch.get_num_threads(),
        0,
    )
    library.asgld_step(table.buffer_info()[0], len(table) // _WORDS_PER_TENSOR, options)
