"""Time of one step of hidden matrices on a GPU, side by side, next to torch's Muon and AdamW.

    python benchmarks/matrix_time_gpu.py            to results/matrix_time_gpu.csv
    python benchmarks/matrix_time_gpu.py --check    exit 1 if a bound is missed
    python benchmarks/matrix_time_gpu.py --tiles    times of tiles of a symmetric product instead

Steps are timed by the wall over several, Python included, and by the GPU's clock. The limit is the
arithmetic of five iterations, without symmetry spared, at the speed of a large product.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import RESULTS, summarize, write_csv
from step_time_gpu import Shapes, captured, make_parameters, time_by_events, time_by_wall
from torch import Tensor

import asgld

OURS, MUON, ADAMW = "NetworkASGLD", "torch.optim.Muon", "AdamW fused"
REPLAY, LIMIT = "NetworkASGLD, graph replay", "arithmetic limit"
# Layers, and the sizes of the hidden matrices of a layer.
LISTS: dict[str, Shapes] = {
    "GPT-2 124M": [(12, (768, 768)), (12, (2304, 768)), (12, (3072, 768)), (12, (768, 3072))],
    "1.2e9": [(24, (2048, 2048)), (24, (6144, 2048)), (24, (8192, 2048)), (24, (2048, 8192))],
}
# (list, largest ratio of a step to each thing it is compared with)
BOUNDS: list[tuple[str, dict[str, float]]] = [
    ("GPT-2 124M", {LIMIT: 2.0}),
    ("GPT-2 124M", {MUON: 0.20}),
    ("1.2e9", {MUON: 0.75}),
]


def ours(params: list[Tensor], **options: Any) -> torch.optim.Optimizer:
    return asgld.NetworkASGLD([{"params": params, "shape": "polar-row"}], lr=1e-3, **options)


CONTENDERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    OURS: ours,
    "NetworkASGLD, no noise": lambda p: ours(p, noise=0.0),
    "NetworkASGLD, capturable": lambda p: ours(p, capturable=True),
    "NetworkASGLD, torch's operations, no noise": lambda p: ours(p, noise=0.0, fused=False),
    ADAMW: lambda p: torch.optim.AdamW(p, fused=True),
    MUON: lambda p: torch.optim.Muon(p, lr=1e-3, adjust_lr_fn="match_rms_adamw"),
}


def flops(shapes: Shapes) -> float:
    """Multiplications and additions of five iterations: X X', R R, and P X."""
    pairs = [(count, *sorted(shape)) for count, shape in shapes]
    return sum(5 * count * (4 * k * k * m + 2 * k**3) for count, k, m in pairs)


def product_speed() -> float:
    """FLOP per second of a large product of bfloat16."""
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    times = time_by_events({"product": lambda: x @ x}, 15)["product"]
    return 2 * 8192**3 / statistics.median(times)


def measure(title: str, shapes: Shapes, speed: float, rounds: int) -> list[dict[str, Any]]:
    rows = []
    params = make_parameters(shapes, torch.float32)
    calls: dict[str, Callable[[], Any]] = {n: make(params).step for n, make in CONTENDERS.items()}
    calls[REPLAY] = captured(ours(params, capturable=True))
    for clock, times in (
        ("wall", time_by_wall(calls, rounds, 4)),
        ("GPU", time_by_events(calls, rounds)),
    ):
        times[LIMIT] = [flops(shapes) / speed]
        for name, each in times.items():
            summary = {key: round(value, 2) for key, value in summarize(each).items()}
            row = {"workload": title, "elements": sum(p.numel() for p in params), "clock": clock}
            rows.append({**row, "contender": name, **summary})
    return rows


def check(rows: list[dict[str, Any]]) -> bool:
    """Print every bound with the ratio measured, by the wall; return whether all are kept."""
    median = {
        (row["workload"], row["contender"]): float(row["median_us"])
        for row in rows
        if row["clock"] == "wall"
    }
    all_kept = True
    for workload, limits in BOUNDS:
        for base, most in limits.items():
            if (workload, base) not in median:
                continue
            ratio = median[workload, OURS] / median[workload, base]
            all_kept &= ratio <= most
            word = "kept  " if ratio <= most else "MISSED"
            print(f"{word} {workload:12s} {ratio:.3f} x {base} (at most {most:.2f})")
    return all_kept


def time_tiles() -> None:
    """Print TFLOP/s, as if the whole product were computed, of tiles and of cuBLAS."""
    from asgld.optim import _triton_matrix as matrix

    tiles = [
        matrix.Tile(128, columns, 64, warps, stages, has_tma)
        for columns, warps, stages in ((128, 4, 3), (128, 8, 3), (128, 8, 4), (256, 8, 3))
        for has_tma in (False, True)
    ]
    for number, size, inner in (
        (36, 768, 768),
        (12, 768, 3072),
        (72, 2048, 2048),
        (24, 2048, 8192),
    ):
        x = torch.randn(number, size, inner, device="cuda").half()
        calls: dict[str, Callable[[], Any]] = {"cuBLAS": lambda x=x: x @ x.mT}
        for tile in tiles:
            calls[str(tuple(tile))] = lambda x=x, tile=tile: matrix.symmetric_product(x, tile=tile)
        for name, each in time_by_events(calls, 9).items():
            speed = 2e-12 * number * size * size * inner / statistics.median(each)
            print(f"{number} x {size} x {inner}: {name:34s} {speed:7.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if a bound is missed")
    parser.add_argument("--tiles", action="store_true", help="time tiles; write nothing")
    parser.add_argument("--out", default=str(RESULTS / "matrix_time_gpu.csv"), help="CSV to write")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("matrix_time_gpu.py needs a CUDA device")
    if arguments.tiles:
        time_tiles()
        return
    speed = product_speed()
    rows: list[dict[str, Any]] = []
    for title, shapes in LISTS.items():
        rows += measure(title, shapes, speed, 9 if math.prod(shapes[0][1]) < 2**20 else 5)
        gc.collect()
        torch.cuda.empty_cache()
        for row in rows:
            if row["workload"] == title:
                print(f"{title:12s} {row['clock']:5s} {row['contender']:44s} "
                      f"{row['median_us'] / 1e3:9.3f} ms")  # fmt: skip
        write_csv(Path(arguments.out), rows)
    if not check(rows) and arguments.check:
        sys.exit(1)


if __name__ == "__main__":
    main()
