"""The step on a GPU: a table of addresses, and one or two launches of a Triton kernel."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from asgld.optim import _triton_kernels as kernels
from asgld.optim._triton_kernels import IS_INTERPRETED
from asgld.optim.functional import check_sums

if TYPE_CHECKING:
    from asgld.optim.rule import Rule

_POWERS = {0.0: kernels.ONE, 1.0: kernels.ROOT, 2.0: kernels.WHOLE}

# Elements per program. Half precision has more arithmetic per byte, and profits from a loop that
# reuses its constants. Single precision only needs many loads under way.
_CHUNK, _CHUNK_OF_HALVES = 512, 8192
_WARPS = 4
_LANES = 128

_TYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


def unavailable_reason() -> str | None:
    """Return why the kernel cannot serve tensors on a GPU, or None where it can."""
    if torch.version.hip is None and torch.cuda.get_device_capability() < (7, 0):
        return "Triton needs a GPU of compute capability 7.0 or newer"
    return None


# Tables that captured graphs read. They stay forever: there is no way to learn when a graph ends.
_captured: list[Any] = []


class GpuTable:
    """Tensors of one GPU, with equal dtypes, as the kernel sees them: addresses and sizes, on the
    GPU, computed once. All parameters have a sum, or none has.

    `host_counts` promises that only this table advances the step counts.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        sums: Sequence[Tensor | None],
        steps: Sequence[Tensor],
        streams: Sequence[int],
        rows: Sequence[tuple[int, int, int] | None],
        momenta: Sequence[Tensor | None] = (),
        grad_dtypes: Sequence[torch.dtype] = (),
        *,
        host_counts: bool = False,
    ) -> None:
        self._kept = (
            *params,
            *sums,
            *steps,
            *momenta,
        )  # an address is valid while its tensor lives
        self._device = params[0].device
        grad_dtype = grad_dtypes[0] if grad_dtypes else params[0].dtype
        self._has_sums = sums[0] is not None
        if any((total is not None) != self._has_sums for total in sums):
            raise ValueError("some of `sums` are None and some are not; make a table of each kind")
        working = torch.float64 if params[0].dtype == torch.float64 else torch.float32
        sum_dtype = working if sums[0] is None else sums[0].dtype
        self._types = tuple(_TYPES[t] for t in (params[0].dtype, grad_dtype, sum_dtype))
        for tensor in self._kept:
            if tensor is not None and tensor.device != self._device:
                raise ValueError(
                    f"a tensor is on {tensor.device}, another on {self._device}: need one device"
                )
        lines = []
        for i, (param, total, step) in enumerate(zip(params, sums, steps, strict=True)):
            average = momenta[i] if momenta else None
            offset, length, stride = rows[i] or (0, param.numel(), 0)
            lines.append(
                (
                    param.data_ptr(),
                    0 if total is None else total.data_ptr(),
                    0 if average is None else average.data_ptr(),
                    step.data_ptr(),
                    param.numel(),
                    offset,
                    length or 1,
                    stride,
                    streams[i],
                )
            )
        table = np.array(lines, np.int64).reshape(len(lines), kernels.ROW.value)
        self._is_aligned = bool((table[:, :3] % 16 == 0).all())
        offsets, lengths, strides = table[:, kernels.OFFSET.value : kernels.STREAM.value].T
        self._has_rows = bool((strides != 0).any())
        in_fours = (offsets % 4 == 0) & (strides % 4 == 0) & ((strides == 0) | (lengths % 4 == 0))
        self._in_fours = bool(in_fours.all())
        # From Hopper on, a kernel can start while the kernel before it still runs, and wait for its
        # results later.
        self._waits = (
            not IS_INTERPRETED
            and torch.version.hip is None
            and torch.cuda.get_device_capability(self._device) >= (9, 0)
        )
        self._number = len(lines)
        self._rows = self._send(table)
        self._shared = torch.empty(
            self._number * kernels.SHARED.value,
            dtype=working,
            device=self._device,
        )
        self._taken = torch.empty(self._number, dtype=torch.int64, device=self._device)
        decisive = params[0].dtype if sums[0] is None else sums[0].dtype
        self._chunk = _CHUNK_OF_HALVES if decisive.itemsize == 2 else _CHUNK
        # A tensor without elements has one chunk too, which advances its step count.
        counts = np.maximum(-(-table[:, kernels.COUNT.value] // self._chunk), 1)
        which = np.repeat(np.arange(self._number), counts)
        number_in_tensor = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        self._num_chunks = int(counts.sum())
        self._chunks = self._send(number_in_tensor << 32 | which)
        self._grads: Tensor | None = None
        self._sent: Sequence[int] | None = None
        self._grads_are_aligned = False
        self._rule: tuple[Any, ...] | None = None
        self._spare: tuple[Tensor, Tensor] | None = None
        self._is_capturable = not host_counts
        self._host_counts = host_counts and params[0].dtype != torch.float64
        self._steps = steps
        self._num_steps = -1  # steps since the counts in `_base`; -1 if `_base` is not valid
        self._base = self._taken

    def _send(self, numbers: Any, dtype: torch.dtype = torch.int64) -> Tensor:
        on_host = torch.as_tensor(numbers, dtype=dtype)
        if self._device.type == "cpu":
            return on_host.clone()
        return on_host.pin_memory().to(self._device, non_blocking=True)

    def can_count(self) -> bool:
        """Return True: the kernel checks the counts, since the host would have to wait for them."""
        return True

    def step(
        self,
        grads: Sequence[int],
        rule: Rule,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """See `asgld.optim.plan.KernelTable`."""
        check_sums(self._has_sums, rule)
        if self._device.type == "cuda" and self._device.index != torch.cuda.current_device():
            with torch.cuda.device(self._device):
                self.step(grads, rule, grad_scale, found_inf)
            return
        self._load_rule(rule)
        addresses = self._load_grads(grads)
        lr = rule.lr if isinstance(rule.lr, Tensor) else None
        is_known = lr is None and grad_scale is None and found_inf is None
        if is_known and self._host_counts and self._is_simple:
            self._launch_alone(rule, addresses)
        else:
            self._num_steps = -1
            self._launch_both(rule, addresses, (lr, grad_scale, found_inf))

    def _launch_alone(self, rule: Rule, addresses: Tensor) -> None:
        """Take a step whose coefficients the host knows, in one launch."""
        if not 0 <= self._num_steps < 2**30:
            self._base = torch.stack(list(self._steps))
            self._num_steps = 0
        lr: Any = rule.lr
        noise = math.sqrt(2.0 * lr) * rule.sigma if rule.noise is None else lr * rule.noise
        changing = (self._num_steps, lr, noise, 1.0 - lr * rule.weight_decay)
        case = self._grads_are_aligned
        update, constants = self._compiled.get(case) or (None, self._constants(rule, False, True))
        update = self._launch_update(update, addresses, self._base, changing, constants)
        self._compiled[case] = update, constants
        self._num_steps += 1

    def _launch_both(
        self, rule: Rule, addresses: Tensor, optional: tuple[Tensor | None, ...]
    ) -> None:
        """Take a step whose coefficients are computed on the GPU."""
        lr_tensor = optional[0]
        high = low = 0.0
        if lr_tensor is None or lr_tensor.device != self._device:
            lr = float(rule.lr)
            high = ctypes.c_float(lr).value
            low = lr - high
            optional = (None, *optional[1:])
        case = (self._grads_are_aligned, *(t if t is None else t.dtype for t in optional))
        grid = (-(-self._number // _LANES), 1, 1)
        tables = (self._rows, self._shared, self._taken, self._knobs)
        nothing = (0, 0.0, 0.0, 0.0)
        if case not in self._compiled:
            _refuse_in_capture()
            begin_constants = (
                *(t is not None for t in optional), rule.decay is not None, rule.fills,
                rule.annealing != 0.0, rule.clip is not None, rule.noise is not None,
                rule.noise_bound is not None and rule.has_noise, self._waits, _LANES,
            )  # fmt: skip
            constants = self._constants(rule, optional[1] is not None, False)
            self._compiled[case] = (None, begin_constants, None, constants)
        begin, begin_constants, update, constants = self._compiled[case]
        if begin is None:
            begun = kernels.begin_step[grid](
                *tables, high, low, *optional, self._number, *begin_constants
            )
            begin = None if IS_INTERPRETED else begun[grid]
        else:
            begin(
                *(t.data_ptr() for t in tables), high, low,
                *(t if t is None else t.data_ptr() for t in optional), self._number,
                *begin_constants,
            )  # fmt: skip
        update = self._launch_update(update, addresses, self._taken, nothing, constants)
        self._compiled[case] = begin, begin_constants, update, constants

    def _constants(self, rule: Rule, is_scaled: bool, is_alone: bool) -> tuple[Any, ...]:
        alpha = _POWERS.get(rule.alpha, kernels.GENERAL)
        beta = _POWERS.get(rule.beta, kernels.GENERAL) if rule.has_noise else kernels.NO_NOISE
        return (
            *self._types, alpha.value, beta.value,
            rule.has_noise and rule.alpha == rule.beta != 0.0,
            rule.weight_decay != 0.0, rule.maximize, is_scaled, rule.decay is not None,
            rule.clip is not None, self._has_sums, rule.momentum != 0.0, rule.opposed,
            rule.stochastic_rounding, self._has_rows, self._in_fours,
            self._is_aligned and self._grads_are_aligned, self._waits and not is_alone, is_alone,
            self._chunk, min(self._chunk, kernels.PART),
        )  # fmt: skip

    def _launch_update(
        self,
        launch: Any,
        addresses: Tensor,
        taken: Tensor,
        changing: Sequence[Any],
        constants: Sequence[Any],
    ) -> Any:
        """Launch `update_chunk`, and return a fast launcher for the next time. Without a launcher
        Triton inspects all arguments, which takes longer than the launch, and compiles."""
        grid = (self._num_chunks, 1, 1)
        tables = (
            self._rows,
            addresses,
            self._shared,
            taken,
            self._knobs,
            self._seeds,
            self._chunks,
        )
        if launch is not None:
            launch(*(table.data_ptr() for table in tables), *changing, *constants)
            return launch
        _refuse_in_capture()
        compiled = kernels.update_chunk[grid](
            *tables, *changing, *constants, num_warps=_WARPS, enable_fp_fusion=False,
            launch_pdl=constants[-4],
        )  # fmt: skip
        return None if IS_INTERPRETED else compiled[grid]

    def _load_rule(self, rule: Rule) -> None:
        """Send the knobs if they differ from those of the last step."""
        knobs = rule[1:]
        if knobs == self._rule:
            return
        _refuse_in_capture()
        values = [0.0 if math.isinf(value) else value for value in rule.numbers()]
        self._knobs = self._send(values, torch.float64)
        seed = rule.seed if rule.seed < 2**63 else rule.seed - 2**64
        self._seeds = self._send([seed])
        self._rule = knobs
        self._is_simple = (
            rule.decay is None
            and rule.clip is None
            and not rule.momentum
            and not rule.annealing
            and (rule.noise_bound is None or not rule.has_noise)
        )
        self._compiled: dict[Any, tuple[Any, ...]] = {}

    def _load_grads(self, grads: Sequence[int]) -> Tensor:
        """Return the gradients' addresses on the GPU; send them first if they have changed."""
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            if not self._is_capturable:
                raise RuntimeError(
                    "Attempting CUDA graph capture of step() for an optimizer whose parameter "
                    "groups have capturable=False; the host counts its steps"
                )
            if grads != self._sent:
                # The graph repeats this copy at every replay, so its source must never change.
                if self._spare is None:
                    _refuse_in_capture()
                assert self._spare is not None
                on_host, self._grads = self._spare
                on_host.numpy()[:] = grads
                self._grads.copy_(on_host, non_blocking=True)
                _captured.append(on_host)
                self._spare = None
                self._grads_are_aligned = all(address % 16 == 0 for address in grads)
                self._sent = None  # the copy happens at a replay, not now
            _captured.append((self, self._grads))
            assert self._grads is not None
            return self._grads
        if grads is not self._sent and grads != self._sent:
            self._grads = self._send(grads)
            self._grads_are_aligned = all(address % 16 == 0 for address in grads)
        self._sent = grads
        if self._spare is None and self._device.type == "cuda":
            on_host = torch.empty(len(grads), dtype=torch.int64).pin_memory()
            self._spare = on_host, torch.empty_like(on_host, device=self._device)
        assert self._grads is not None
        return self._grads


def _refuse_in_capture() -> None:
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "the fused step cannot begin inside a CUDA graph: take at least one step with these "
            "settings before the capture"
        )
