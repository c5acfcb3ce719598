"""The CPU kernel: find it, call it, or say why it is not there.

The kernel is plain C (`native/` in the source tree) behind a C interface, so it depends on neither
Python's nor torch's ABI. The package holds one shared object per instruction set, all with the same
bits, and loads the best one that the processor runs. The kernel uses the threads of torch's OpenMP
runtime, so both share one pool.

The environment variable ``ASGLD_NATIVE_DIR`` names another directory of shared objects, for
instance that of a build by hand:

    cmake -S . -B build/native && cmake --build build/native
    ASGLD_NATIVE_DIR=build/native python ...
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from asgld.optim.functional import check_sums
from asgld.optim.rule import NUMBERS, Rule

# torch's name of a processor's capability, and the builds that run there, best first. Any other
# processor runs the portable build.
_BUILDS = {
    "AVX512": ("avx512", "avx2", "portable"),
    "AVX2": ("avx2", "portable"),
}
_TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
# The struct `options` of native/asgld.c: the numbers of `Rule`, the factor of the gradients, the
# seed, and three integers.
_OPTIONS = struct.Struct(f"{len(NUMBERS) + 1}dQ3i4x")

# The version of the structs in native/asgld.c. Version 2 has tensors without a sum.
_INTERFACE = 2

# The choice of `set_build`.
_choice: dict[str, str | None] = {"build": None}


def unavailable_reason() -> str | None:
    """Return why the kernel cannot serve, or None where it can."""
    found = _load(_choice["build"])
    return found if isinstance(found, str) else None


def available_builds() -> list[str]:
    """Return the builds that are installed and that this processor runs, best first."""
    wanted = _BUILDS.get(torch.backends.cpu.get_cpu_capability(), ("portable",))
    return [build for build in wanted if _find(build) is not None]


def set_build(build: str | None) -> None:
    """Use one of `available_builds()`; None is the best of them. For tests and benchmarks."""
    if build is not None and build not in available_builds():
        raise ValueError(f"build={build!r}: available here are {available_builds()}")
    _choice["build"] = build


@functools.cache
def _load(build: str | None) -> ctypes.CDLL | str:
    """Return the library, or the reason why there is none."""
    reason = "the kernel is not built; install asgld with a C compiler at hand"
    _share_threads()
    for name in available_builds() if build is None else [build]:
        path = _find(name)
        assert path is not None
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            reason = f"{path.name} does not load: {error}"
            continue
        # A library that was built from other sources would misread the addresses it is given.
        if not hasattr(library, "asgld_interface") or library.asgld_interface() != _INTERFACE:
            reason = f"{path.name} was built from other sources; install asgld again"
            continue
        library.asgld_step.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p]
        library.asgld_can_count.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        library.asgld_step.restype = library.asgld_can_count.restype = ctypes.c_int32
        return library
    return reason


def _share_threads() -> None:
    """Let the kernel find the OpenMP runtime that torch has loaded; it is linked to none."""
    with contextlib.suppress(OSError):  # a kernel without threads needs no runtime
        ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL)


def _find(build: str) -> Path | None:
    from asgld import optim

    # In an editable installation the sources and the built libraries are in two directories of the
    # package's path.
    chosen = os.environ.get("ASGLD_NATIVE_DIR")
    for directory in [chosen] if chosen else optim.__path__:
        path = Path(directory) / f"libasgld_{build}.so"
        if path.is_file():
            return path
    return None


class CpuTable:
    """A list of tensors as the C kernel sees it: addresses and sizes, computed once."""

    def __init__(
        self,
        params: Sequence[Tensor],
        sums: Sequence[Tensor | None],
        steps: Sequence[Tensor],
        streams: Sequence[int],
        rows: Sequence[tuple[int, int, int] | None],
        momenta: Sequence[Tensor | None] = (),
        grad_dtypes: Sequence[torch.dtype] = (),
    ) -> None:
        # An address is valid while its tensor lives.
        self._kept = (*params, *sums, *steps, *momenta)
        self._has_all_sums = all(total is not None for total in sums)
        self._has_momenta = len(momenta) == len(params) and all(m is not None for m in momenta)
        lines = []
        for i, (param, total, step) in enumerate(zip(params, sums, steps, strict=True)):
            count = param.numel()
            average = momenta[i] if momenta else None
            sized = [t for t in (param, total, average) if t is not None]
            if not (
                all(t.is_cpu and t.is_contiguous() for t in (*sized, step))
                and all(t.numel() == count for t in sized)
            ):
                raise ValueError(
                    f"params[{i}], sums[{i}], momenta[{i}]: need contiguous CPU tensors of one "
                    "size; pass .contiguous() copies and copy the results back"
                )
            offset, row_length, row_stride = rows[i] or (0, count, 0)
            lines.append(
                (
                    param.data_ptr(),
                    0,
                    0 if total is None else total.data_ptr(),
                    0 if average is None else average.data_ptr(),
                    step.data_ptr(),
                    count,
                    offset,
                    row_length or 1,
                    row_stride,
                    streams[i],
                    _types(param, total, average, grad_dtypes[i] if grad_dtypes else param.dtype),
                )
            )
        self._table = np.array(lines, np.uint64).reshape(len(lines), 11)
        self._address = self._table.ctypes.data

    def can_count(self) -> bool:
        """See `asgld.optim.plan.KernelTable`."""
        return bool(_required().asgld_can_count(self._address, len(self._table)))

    def step(
        self,
        grads: Sequence[int],
        rule: Rule,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """See `asgld.optim.plan.KernelTable`."""
        if found_inf is not None and bool(found_inf):
            return
        check_sums(self._has_all_sums, rule)
        if rule.momentum != 0.0 and not self._has_momenta:
            raise ValueError(
                f"momentum={rule.momentum}: `momenta` must hold a tensor for every parameter; an "
                "optimizer made with momentum has them"
            )
        self._table[:, 1] = grads
        failed = _required().asgld_step(
            self._address,
            len(self._table),
            _OPTIONS.pack(
                float(rule.lr),
                *rule.numbers()[1:],
                1.0 if grad_scale is None else 1.0 / float(grad_scale),
                rule.seed,
                rule.maximize,
                rule.stochastic_rounding,
                torch.get_num_threads(),
            ),
        )
        if failed:
            raise RuntimeError(
                "a step count is past the noise counter's 32 bits; start a new optimizer with "
                "another seed"
            )


def _types(param: Tensor, total: Tensor | None, average: Tensor | None, grad: torch.dtype) -> int:
    """Return the kernel's numbers for the dtypes of parameter, gradient and sum, 16 bits each, the
    lowest first. Momentum has the working precision, and so has a sum that is not there."""
    is_double = param.dtype == torch.float64
    working = torch.float64 if is_double else torch.float32
    sum_dtype = working if total is None else total.dtype
    dtypes = param.dtype, grad, sum_dtype
    fits = all(dtype in _TYPES for dtype in dtypes) and (grad == torch.float64) == is_double
    if not fits or (is_double and sum_dtype != torch.float64):
        raise TypeError(
            f"a parameter of {param.dtype}, its gradient of {grad}, its sum of {sum_dtype}: need "
            f"dtypes among {', '.join(map(str, _TYPES))}. If the parameter is float64 all three "
            "must be, and else the gradient must not be"
        )
    if average is not None and average.dtype != working:
        raise TypeError(
            f"a momentum of {average.dtype}, a parameter of {param.dtype}: need {working}"
        )
    return sum(_TYPES[dtype] << 16 * place for place, dtype in enumerate(dtypes))


def _required() -> ctypes.CDLL:
    library = _load(_choice["build"])
    if isinstance(library, str):
        raise RuntimeError(f"the native kernel cannot serve: {library}")
    return library
