"""Time of one optimizer step, side by side, as a ratio to torch's fused AdamW.

    python benchmarks/step_time.py            everything, to results/step_time_cpu.csv
    python benchmarks/step_time.py --quick    seconds, nothing written
    python benchmarks/step_time.py --check    exit 1 if a bound is missed

Contenders are timed in turn in one process, with gradients already there. Ratios are of minima: a
machine may be shared, and a minimum is what the code costs when nobody disturbs it.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import RESULTS, interleave, summarize, write_csv
from torch import Tensor

import asgld
from asgld.optim import plan

BASELINE = "AdamW fused"
FORGETTING = {"decay": 0.99, "clip": 0.25, "annealing": 1.0, "d_init": 0.0}
WIDER = {**FORGETTING, "momentum": 0.9, "opposed": 0.0}

# ResNet-50: 161 tensors, 25.6 million elements. (how many, shape)
RESNET_50: list[tuple[int, tuple[int, ...]]] = [
    (1, (64, 3, 7, 7)), (2, (64,)), (1, (1000, 2048)), (1, (1000,)),
    (1, (64, 64, 1, 1)), (3, (64, 64, 3, 3)), (4, (256, 64, 1, 1)), (2, (64, 256, 1, 1)),
    (12, (64,)), (8, (256,)),
    (1, (128, 256, 1, 1)), (4, (128, 128, 3, 3)), (4, (512, 128, 1, 1)), (3, (128, 512, 1, 1)),
    (1, (512, 256, 1, 1)), (16, (128,)), (10, (512,)),
    (1, (256, 512, 1, 1)), (6, (256, 256, 3, 3)), (6, (1024, 256, 1, 1)), (5, (256, 1024, 1, 1)),
    (1, (1024, 512, 1, 1)), (24, (256,)), (14, (1024,)),
    (1, (512, 1024, 1, 1)), (3, (512, 512, 3, 3)), (3, (2048, 512, 1, 1)), (2, (512, 2048, 1, 1)),
    (1, (2048, 1024, 1, 1)), (12, (512,)), (8, (2048,)),
]  # fmt: skip

WORKLOADS: dict[str, list[tuple[int, tuple[int, ...]]]] = {
    "1e4": [(1, (10_000,))],
    "1e6": [(1, (1_000_000,))],
    "1e7": [(1, (10_000_000,))],
    "ResNet-50 list": RESNET_50,
}

# (workload, contender, baseline, largest ratio): what a release must keep.
BOUNDS = [
    ("1e4", "ASGLD fused", BASELINE, 1.0),
    ("1e7", "ASGLD fused", BASELINE, 1.35),
    ("ResNet-50 list", "ASGLD fused", BASELINE, 1.35),
    ("1e7", "ASGLD fused, general powers", BASELINE, 2.0),
    ("1e7", "ASG fused", "Adagrad fused", 1.0),
]


def make_parameters(workload: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    params = []
    for count, shape in WORKLOADS[workload]:
        for _ in range(count):
            p = torch.randn(shape, generator=generator).requires_grad_()
            p.grad = torch.randn(shape, generator=generator)
            params.append(p)
    return params


def ours() -> dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]]:
    contenders: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
        "ASGLD loop": lambda p: asgld.ASGLD(p, foreach=False),
        "ASGLD foreach": lambda p: asgld.ASGLD(p, foreach=True),
        "ASG loop": lambda p: asgld.ASG(p, foreach=False),
        "ASG foreach": lambda p: asgld.ASG(p, foreach=True),
    }
    reason = plan.unavailable_reason([torch.zeros(1)])
    if reason is None:
        contenders |= {
            "ASGLD fused": lambda p: asgld.ASGLD(p, fused=True),
            "ASGLD fused, general powers": lambda p: asgld.ASGLD(
                p, alpha=0.7, beta=1.3, fused=True
            ),
            "ASGLD fused, decay, momentum, clip": lambda p: asgld.ASGLD(p, fused=True, **WIDER),
            "ASGLD fused, decay, clip": lambda p: asgld.ASGLD(p, fused=True, **FORGETTING),
            "ASG fused": lambda p: asgld.ASG(p, fused=True),
        }
    else:
        print(f"no fused rows: {reason}")
    return contenders


def torch_own() -> dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]]:
    return {
        BASELINE: lambda p: torch.optim.AdamW(p, fused=True),
        "AdamW foreach": lambda p: torch.optim.AdamW(p, foreach=True),
        "Adagrad fused": lambda p: torch.optim.Adagrad(p, fused=True),
        "Adagrad foreach": lambda p: torch.optim.Adagrad(p, foreach=True),
    }


def peers(params: list[Tensor]) -> dict[str, Callable[[], Any]]:
    """SGLD steps of other libraries, where they are installed (`make bench` installs them)."""
    steps: dict[str, Callable[[], Any]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import torch_sgld

            steps["torch-sgld SGLD"] = torch_sgld.SGLD(params, lr=1e-2).step
        except ImportError:
            print("no row for torch-sgld: not installed")
        try:
            import posteriors

            # The library differentiates by itself: a linear log posterior has these gradients, at
            # the price of one multiplication and sum.
            grads = {str(i): p.grad for i, p in enumerate(params)}

            def log_posterior(values: Any, _: Any) -> tuple[Tensor, Tensor]:
                total = sum((values[name] * grad).sum() for name, grad in grads.items())
                return -total, torch.zeros(0)

            transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=1e-2)
            held = {"state": transform.init({str(i): p.detach() for i, p in enumerate(params)})}

            def step() -> None:
                held["state"], _ = transform.update(held["state"], None)

            steps["posteriors SGLD (with gradient)"] = step
        except ImportError:
            print("no row for posteriors: not installed")
    return steps


def measure(workload: str, rounds: int, seconds: float) -> list[dict[str, Any]]:
    # All contenders work on the same parameters: where in memory they happen to lie shows in the
    # time of a step. Only states are their own.
    params = make_parameters(workload)
    contenders: dict[str, Callable[[], Any]] = {
        name: build(params).step for name, build in {**torch_own(), **ours()}.items()
    }
    contenders |= peers(params)
    times = interleave(contenders, rounds=rounds, seconds=seconds)
    numel = sum(count * math.prod(shape) for count, shape in WORKLOADS[workload])
    return [
        {
            "workload": workload,
            "elements": numel,
            "contender": name,
            **{key: round(value, 2) for key, value in summarize(each).items()},
            "ratio_to_adamw_fused": round(min(each) / min(times[BASELINE]), 3),
        }
        for name, each in times.items()
    ]


def check(rows: list[dict[str, Any]]) -> bool:
    least = {(row["workload"], row["contender"]): row["min_us"] for row in rows}
    passed = True
    for workload, contender, baseline, bound in BOUNDS:
        if (workload, contender) not in least:
            print(f"MISSED  {workload}: {contender} could not run")
            passed = False
            continue
        ratio = least[workload, contender] / least[workload, baseline]
        verdict = "kept  " if ratio <= bound else "MISSED"
        passed &= ratio <= bound
        print(f"{verdict}  {workload}: {contender} / {baseline} = {ratio:.3f}, bound {bound}")
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="seconds; writes nothing")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bound is missed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", default=str(RESULTS / "step_time_cpu.csv"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    rows = []
    for workload in WORKLOADS:
        if arguments.quick:
            rows += measure(workload, rounds=2, seconds=0.01)
        else:
            rows += measure(workload, rounds=15, seconds=0.05)
        print(f"\n{workload}  ({rows[-1]['elements']:,} elements)")
        for row in (r for r in rows if r["workload"] == workload):
            print(
                f"  {row['contender']:34s} {row['min_us']:12.1f} us   "
                f"{row['ratio_to_adamw_fused']:8.3f} x {BASELINE}"
            )
    if not arguments.quick:
        write_csv(Path(arguments.out), rows)
        print(f"\nwritten to {arguments.out}")
    if arguments.check and not check(rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
