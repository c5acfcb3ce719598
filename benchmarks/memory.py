"""Memory of an optimizer: bytes of state per parameter, and what a step takes beyond that.

    python benchmarks/memory.py            to results/memory_cpu.csv or results/memory_gpu.csv
    python benchmarks/memory.py --check    exit 1 if a bound is missed

On a GPU torch counts its own allocations; on a CPU the peak of the resident set is read, with the
state's own pages touched before. A step that needs as much as one tensor shows at once.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import RESULTS, write_csv
from step_time_gpu import WIDER
from torch import Tensor

import asgld

NUM_TENSORS, NUMEL = 4, 1 << 24
Build = Callable[[list[Tensor]], torch.optim.Optimizer]
CONTENDERS: dict[str, tuple[torch.dtype, Build]] = {
    "AdamW fused": (torch.float32, lambda p: torch.optim.AdamW(p, fused=True)),
    "AdamW foreach": (torch.float32, lambda p: torch.optim.AdamW(p, foreach=True)),
    "Adagrad foreach": (torch.float32, lambda p: torch.optim.Adagrad(p, foreach=True)),
    "ASGLD loop": (torch.float32, lambda p: asgld.ASGLD(p, foreach=False, fused=False)),
    "ASGLD fused": (torch.float32, lambda p: asgld.ASGLD(p, fused=True)),
    "ASG fused": (torch.float32, lambda p: asgld.ASG(p, fused=True)),
    "ASGLD fused, general powers": (
        torch.float32,
        lambda p: asgld.ASGLD(p, alpha=0.7, beta=1.3, fused=True),
    ),
    "ASGLD fused, decay, momentum, clip": (
        torch.float32,
        lambda p: asgld.ASGLD(p, fused=True, **WIDER),
    ),
    "ASGLD fused, bfloat16": (
        torch.bfloat16,
        lambda p: asgld.ASGLD(p, fused=True, stochastic_rounding=True),
    ),
    "ASGLD fused, bfloat16, bfloat16 sum": (
        torch.bfloat16,
        lambda p: asgld.ASGLD(p, fused=True, stochastic_rounding=True, sum_dtype=torch.bfloat16),
    ),
}
# contender: bytes of state per parameter; and no fused step may take a tenth of a tensor.
STATE = {"ASGLD fused": 4, "ASG fused": 4, "ASGLD fused, general powers": 4,
         "ASGLD fused, decay, momentum, clip": 8, "ASGLD fused, bfloat16": 4,
         "ASGLD fused, bfloat16, bfloat16 sum": 2}  # fmt: skip


class Peak:
    """The most memory in use since it was entered, beyond what was in use then."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __enter__(self) -> Peak:
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            self.before = _status("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
            self.bytes = torch.cuda.max_memory_allocated() - self.before
        else:
            self.bytes = max(0, _status("VmHWM") - self.before)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no {name} in /proc/self/status")


def measure(name: str, device: str) -> dict[str, Any]:
    dtype, build = CONTENDERS[name]
    params = [torch.randn(NUMEL, device=device).to(dtype).requires_grad_()
              for _ in range(NUM_TENSORS)]  # fmt: skip
    for p in params:
        p.grad = torch.randn(NUMEL, device=device).to(dtype)
    optimizer = build(params)
    for _ in range(2):  # all pages of the state are touched, all kernels compiled
        optimizer.step()
    tensors = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    with Peak(device) as peak:
        optimizer.step()
    count = NUM_TENSORS * NUMEL
    return {
        "contender": name,
        "parameters": count,
        "state_bytes_per_parameter": round(sum(t.nbytes for t in tensors) / count, 3),
        "temporary_bytes_per_parameter": round(peak.bytes / count, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if a bound is missed")
    parser.add_argument("--out", help="CSV to write")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, all_kept = [], True
    for name in CONTENDERS:
        row = measure(name, device)
        gc.collect()
        kept = name not in STATE or (
            row["state_bytes_per_parameter"] <= STATE[name] + 0.01
            and row["temporary_bytes_per_parameter"] < 0.1
        )
        all_kept &= kept
        rows.append(row)
        print(f"{'      ' if kept else 'MISSED'} {name:36s} state "
              f"{row['state_bytes_per_parameter']:6.2f}   temporary "
              f"{row['temporary_bytes_per_parameter']:6.2f}  bytes per parameter")  # fmt: skip
    where = "gpu" if device == "cuda" else "cpu"
    write_csv(Path(arguments.out or RESULTS / f"memory_{where}.csv"), rows)
    if arguments.check and not all_kept:
        sys.exit(1)


if __name__ == "__main__":
    main()
