"""The kernels on a GPU: a list of tensors as they see it, and one launch per step."""

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

if TYPE_CHECKING:
    from asgld.optim.rule import Rule

_POWERS = {0.0: kernels.ONE, 1.0: kernels.ROOT, 2.0: kernels.WHOLE}

# Elements per program. Half precision needs more arithmetic per byte, and a loop that reuses its
# constants; single precision needs nothing but loads under way.
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


# Tables that a captured graph reads, which must outlive it; nobody says when it is gone.
_captured: list[Any] = []


class Table:
    """Tensors of one GPU, alike in their dtypes, as the kernel sees them: addresses and sizes, on
    the GPU, worked out once.

    `host_counts` promises that nothing but this table advances the step counts.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        sums: Sequence[Tensor],
        steps: Sequence[Tensor],
        streams: Sequence[int],
        rows: Sequence[tuple[int, int, int] | None],
        momenta: Sequence[Tensor | None] = (),
        grad_dtypes: Sequence[torch.dtype] = (),
        *,
        host_counts: bool = False,
    ) -> None:
        self._kept = (*params, *sums, *steps, *momenta)  # addresses need their tensors
        self._device = params[0].device
        grad_dtype = grad_dtypes[0] if grad_dtypes else params[0].dtype
        self._types = tuple(_TYPES[t] for t in (params[0].dtype, grad_dtype, sums[0].dtype))
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
                    total.data_ptr(),
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
        strides = table[:, kernels.ROW_STRIDE.value]
        self._has_rows = bool((strides != 0).any())
        self._in_fours = bool(
            (table[:, kernels.OFFSET.value] % 4 == 0).all()
            and (table[:, kernels.ROW_STRIDE.value] % 4 == 0).all()
            and (
                table[table[:, kernels.ROW_STRIDE.value] != 0, kernels.ROW_LENGTH.value] % 4 == 0
            ).all()
        )
        # From Hopper on a kernel can be launched while the one before it still runs, and wait for
        # it where it needs its results.
        self._waits = (
            not IS_INTERPRETED
            and torch.version.hip is None
            and torch.cuda.get_device_capability(self._device) >= (9, 0)
        )
        self._number = len(lines)
        self._rows = self._send(table)
        self._shared = torch.empty(
            self._number * kernels.SHARED.value,
            dtype=torch.float64 if params[0].dtype == torch.float64 else torch.float32,
            device=self._device,
        )
        self._taken = torch.empty(self._number, dtype=torch.int64, device=self._device)
        self._chunk = _CHUNK_OF_HALVES if sums[0].dtype == torch.bfloat16 else _CHUNK
        # A tensor without elements has a chunk too, which keeps its count.
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
        self._num_steps = -1  # since `_base` was taken, if it was
        self._base = self._taken

    def _send(self, numbers: Any, dtype: torch.dtype = torch.int64) -> Tensor:
        on_host = torch.as_tensor(numbers, dtype=dtype)
        if self._device.type == "cpu":
            return on_host.clone()
        return on_host.pin_memory().to(self._device, non_blocking=True)

    def can_count(self) -> bool:
        """The kernel guards its counts: the host would have to wait for them."""
        return True

    def step(
        self,
        grads: Sequence[int],
        rule: Rule,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        """See `asgld.optim.plan.Table`."""
        if self._device.type == "cuda" and self._device.index != torch.cuda.current_device():
            with torch.cuda.device(self._device):
                self._launch(grads, rule, grad_scale, found_inf)
        else:
            self._launch(grads, rule, grad_scale, found_inf)

    def _launch(
        self,
        grads: Sequence[int],
        rule: Rule,
        grad_scale: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
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
        known = self._compiled.get(self._grads_are_aligned)
        if known is None:
            constants = self._constants(rule, False, True)
            update = self._compile_update(addresses, self._base, changing, constants)
            self._compiled[self._grads_are_aligned] = (self._launcher(update), constants)
        else:
            # What Triton would find out again from the arguments takes it longer than the launch.
            update, constants = known
            self._run_update(update, addresses, self._base, changing, constants)
        self._num_steps += 1

    def _launch_both(
        self, rule: Rule, addresses: Tensor, optional: tuple[Tensor | None, ...]
    ) -> None:
        """Take a step whose coefficients are worked out on the GPU."""
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
        known = self._compiled.get(case)
        nothing = (0, 0.0, 0.0, 0.0)
        if known is None:
            _refuse_in_capture()
            has_lr, has_scale, has_inf = (t is not None for t in optional)
            begin_constants = (
                has_lr, has_scale, has_inf, rule.decay is not None, rule.fills,
                rule.annealing != 0.0, rule.clip is not None, rule.noise is not None,
                rule.noise_bound is not None and rule.has_noise, self._waits, _LANES,
            )  # fmt: skip
            begin = kernels.begin_step[grid](
                *tables, high, low, *optional, self._number, *begin_constants
            )
            constants = self._constants(rule, has_scale, False)
            update = self._compile_update(addresses, self._taken, nothing, constants)
            if not IS_INTERPRETED:
                begin = begin[grid]
            self._compiled[case] = (begin, begin_constants, self._launcher(update), constants)
            return
        begin, begin_constants, update, constants = known
        if IS_INTERPRETED:
            kernels.begin_step[grid](*tables, high, low, *optional, self._number, *begin_constants)
        else:
            begin(
                *(t.data_ptr() for t in tables), high, low,
                *(t if t is None else t.data_ptr() for t in optional), self._number,
                *begin_constants,
            )  # fmt: skip
        self._run_update(update, addresses, self._taken, nothing, constants)

    def _constants(self, rule: Rule, is_scaled: bool, is_alone: bool) -> tuple[Any, ...]:
        alpha = _POWERS.get(rule.alpha, kernels.GENERAL)
        beta = _POWERS.get(rule.beta, kernels.GENERAL) if rule.has_noise else kernels.NO_NOISE
        return (
            *self._types, alpha.value, beta.value,
            rule.has_noise and rule.alpha == rule.beta != 0.0,
            rule.weight_decay != 0.0, rule.maximize, is_scaled, rule.decay is not None,
            rule.clip is not None, rule.momentum != 0.0, rule.opposed, rule.stochastic_rounding,
            self._has_rows, self._in_fours, self._is_aligned and self._grads_are_aligned,
            self._waits and not is_alone, is_alone, self._chunk, min(self._chunk, kernels.PART),
        )  # fmt: skip

    def _compile_update(
        self, addresses: Tensor, taken: Tensor, changing: Sequence[Any], constants: Sequence[Any]
    ) -> Any:
        """Launch through Triton's own dispatch, which compiles, and return what it compiled."""
        _refuse_in_capture()
        return kernels.update_chunk[(self._num_chunks, 1, 1)](
            self._rows, addresses, self._shared, taken, self._knobs, self._seeds, self._chunks,
            *changing, *constants, num_warps=_WARPS, enable_fp_fusion=False,
            launch_pdl=constants[-4],
        )  # fmt: skip

    def _launcher(self, update: Any) -> Any:
        """What launches the compiled kernel on this table, given addresses."""
        return None if IS_INTERPRETED else update[(self._num_chunks, 1, 1)]

    def _run_update(
        self,
        launch: Any,
        addresses: Tensor,
        taken: Tensor,
        changing: Sequence[Any],
        constants: Sequence[Any],
    ) -> None:
        if IS_INTERPRETED:
            self._compile_update(addresses, taken, changing, constants)
            return
        launch(
            self._rows.data_ptr(), addresses.data_ptr(), self._shared.data_ptr(), taken.data_ptr(),
            self._knobs.data_ptr(), self._seeds.data_ptr(), self._chunks.data_ptr(), *changing,
            *constants,
        )  # fmt: skip

    def _load_rule(self, rule: Rule) -> None:
        """Send the knobs if they are not those of the last step."""
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
        """Return the gradients' addresses on the GPU, sending them if they have changed."""
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            if not self._is_capturable:
                raise RuntimeError(
                    "Attempting CUDA graph capture of step() for an optimizer whose parameter "
                    "groups have capturable=False; the host counts its steps"
                )
            if grads != self._sent:
                # The graph repeats this copy at every replay, from memory nobody else may write.
                if self._spare is None:
                    _refuse_in_capture()
                assert self._spare is not None
                on_host, self._grads = self._spare
                on_host.numpy()[:] = grads
                self._grads.copy_(on_host, non_blocking=True)
                _captured.append(on_host)
                self._spare = None
                self._grads_are_aligned = all(address % 16 == 0 for address in grads)
                self._sent = None  # not before a replay
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
