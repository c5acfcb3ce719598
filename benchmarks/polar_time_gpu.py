"""Time of polar factors and of whole steps by matrices on a GPU, side by side; sets tile sizes.

    python benchmarks/polar_time_gpu.py OUT.csv            about two minutes on an H200
    python benchmarks/polar_time_gpu.py OUT.csv --quick    the small list alone

First every kernel is compared with float64. Then each way to cut up a symmetric product is timed,
next to cuBLAS; the fastest ones are what `_TILES_OF_HOPPER` in asgld.optim._triton_matrix should
say, and serve the rest of the run. Then whole steps are timed, next to torch's. A kernel is timed
by replays of a graph; a step by the GPU's clock, by the wall with Python, and as a graph.
"""

from __future__ import annotations

import argparse
import csv
import gc
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from asgld.optim import _triton_matrix as matrix
from asgld.optim._triton_matrix import Tile

Lists = list[tuple[int, tuple[int, int]]]
GPT_2: Lists = [(12, (768, 768)), (12, (2304, 768)), (12, (3072, 768)), (12, (768, 3072))]
LARGE: Lists = [(24, (2048, 2048)), (24, (6144, 2048)), (24, (8192, 2048)), (24, (2048, 8192))]

TILES = [
    Tile(128, 128, 64, 4, 3, False),
    Tile(128, 128, 64, 4, 3, True),
    Tile(128, 128, 64, 8, 3, True),
    Tile(128, 128, 64, 8, 4, True),
    Tile(128, 256, 64, 8, 3, True),
    Tile(128, 256, 64, 8, 4, True),
]
# (title, number, size, inner, is_turned, form, how often a step of Muon's needs it)
PRODUCTS = [
    ("XX'", 12, 768, 3072, False, "square", 2),
    ("X'X", 12, 768, 3072, True, "square", 4),
    ("aI+bR+cRR", 36, 768, 768, False, "polynomial", 5),
    ("RP", 36, 768, 768, False, "mixed", 9),
    ("XX'", 24, 2048, 8192, False, "square", 2),
    ("X'X", 24, 2048, 8192, True, "square", 4),
    ("aI+bR+cRR", 72, 2048, 2048, False, "polynomial", 5),
    ("RP", 72, 2048, 2048, False, "mixed", 9),
]
ROWS: list[dict[str, Any]] = []
START = time.perf_counter()


def note(section: str, case: str, contender: str, **numbers: float) -> None:
    ROWS.append({"section": section, "case": case, "contender": contender, **numbers})


def say(text: str) -> None:
    print(f"[{time.perf_counter() - START:5.1f} s] {text}", flush=True)


def error_of(found: Tensor, exact: Tensor) -> float:
    error = float((found.double() - exact).norm() / exact.norm())
    return error if math.isfinite(error) else math.inf


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


# ----------------------------------------------------------------------------------------------
# Right?
# ----------------------------------------------------------------------------------------------


def check_products() -> bool:
    is_right = True
    shapes = [
        (2, 768, 3072), (2, 3072, 768), (3, 1000, 776), (2, 777, 333), (2, 2048, 2048), (3, 5, 64),
    ]  # fmt: skip
    for tile in [*TILES]:
        worst, is_equal = 0.0, True
        try:
            for shape in shapes:
                X = normal(*shape, dtype=torch.float16)
                turned = shape[1] > shape[2]
                wide = X.double()
                exact = wide.mT @ wide if turned else wide @ wide.mT
                out = torch.full(exact.shape, torch.nan, device="cuda", dtype=torch.float16)
                matrix.symmetric_product(X, out, transpose=turned, tile=tile)
                worst = max(worst, error_of(out, exact))
                is_equal &= torch.equal(out, out.mT)
                R = (out.double() / shape[1 + (not turned)]).half()
                R = torch.tril(R) + torch.tril(R, -1).mT
                P = torch.full_like(R, torch.nan)
                matrix.symmetric_product(R, P, R, 0.5, -2.0, diagonal=3.0, tile=tile)
                one = torch.eye(len(R[0]), device="cuda", dtype=torch.float64)
                exact = 0.5 * R.double() @ R.double() - 2.0 * R.double() + 3.0 * one
                worst = max(worst, error_of(P, exact))
                is_equal &= torch.equal(P, P.mT)
                out.fill_(torch.nan)
                P = torch.tril(P) + torch.tril(P, -1).mT
                matrix.symmetric_product(R, out, Y=P, tile=tile)
                worst = max(worst, error_of(out, R.double() @ P.double()))
                is_equal &= torch.equal(out, out.mT)
        except Exception:
            traceback.print_exc(limit=-2)
            worst = math.inf
        note("check", "product", str(tuple(tile)), error=worst)
        say(f"product {tuple(tile)}: error {worst:.1e}, {'' if is_equal else 'not '}symmetric")
        if worst > 2e-3:
            TILES.remove(tile)
            is_right = False
    return is_right


def plain(X: Tensor, dtype: torch.dtype) -> Tensor:
    """The plain iteration with cuBLAS, batched."""
    X = (X.double() / X.double().norm(dim=(1, 2), keepdim=True)).to(dtype)
    X = X.mT if (is_tall := X.shape[1] > X.shape[2]) else X
    for a, b, c in matrix.MUON:
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X.mT if is_tall else X


def spread(number: int, n: int, m: int) -> Tensor:
    """Singular values spread over four decades, uniformly in the logarithm."""
    k = min(n, m)
    left, right = (torch.linalg.qr(normal(number, size, k))[0] for size in (n, m))
    return (left * 10 ** (-4 * torch.rand(number, 1, k, device="cuda"))) @ right.mT


KINDS: dict[str, Callable[[int, int, int], Tensor]] = {
    "normal": normal,
    "spread": spread,
    "rank 5 and noise": lambda b, n, m: normal(b, n, 5) @ normal(b, 5, m) + 1e-3 * normal(b, n, m),
    "common row": lambda b, n, m: normal(b, n, m) + 3.0 * normal(b, 1, m),
    "scaled columns": lambda b, n, m: normal(b, n, m) * torch.exp(2.0 * normal(b, 1, m)),
    "copied rows": lambda b, n, m: normal(b, n // 2, m).repeat(1, 2, 1),
}


def check_polars() -> bool:
    is_right = True
    for shape in ((2, 768, 3072), (2, 2304, 768), (2, 768, 768), (1, 2048, 8192)):
        said = []
        for kind, draw in KINDS.items():
            X = draw(*shape).bfloat16()
            exact = plain(X, torch.float64)
            theirs = error_of(plain(X, torch.bfloat16), exact)
            ours = error_of(matrix.polar(X.clone()), exact)
            note("check", f"polar {shape} {kind}", "ours", error=ours)
            note("check", f"polar {shape} {kind}", "plain bfloat16", error=theirs)
            said.append(f"{kind} {ours:.4f}/{theirs:.4f}")
            is_right &= ours <= 1.5 * theirs
        say(f"polar {shape}, error ours/plain bfloat16: {', '.join(said)}")
    return is_right


def check_rest() -> bool:
    """Sources, row scales and updates, on tensors of a real size and on odd ones."""
    is_right = True
    for number, n, m in ((3, 768, 3072), (2, 33, 65)):
        grads, momenta, params = (
            [normal(n, m) for _ in range(number)] for _ in ("grads", "momenta", "params")
        )
        expected = [torch.lerp(a, g, 0.05) for a, g in zip(momenta, grads, strict=True)]
        wanted = torch.stack([torch.lerp(g, a, 0.95) for a, g in zip(expected, grads, strict=True)])
        X = torch.full((number, n, m), torch.nan, device="cuda", dtype=torch.bfloat16)
        squares = matrix.sources(grads, momenta, 0.95, X)
        errors = [error_of(X, wanted.double()) / 2e-3]
        errors += [error_of(torch.stack(momenta), torch.stack(expected).double()) / 1e-6]
        errors += [error_of(squares, X.double().square().sum((1, 2))) / 1e-5]
        v, one = normal(number, n).abs(), torch.rand(number, device="cuda") + 0.1
        r = X.double().square().mean(2)
        w = (one[:, None] * v.double() + one[:, None]).rsqrt()
        w = w * 3.0 * (r.sum(1) / (r * w * w).sum(1)).sqrt()[:, None]
        average = 0.95 * v.double() + 0.05 * r
        found = matrix.row_scales(X, v, one, one, 0.95, 3.0)
        errors += [error_of(found, w) / 1e-5, error_of(v, average) / 1e-5]
        old = torch.stack(params).double()
        matrix.update(params, [X], [found], 0.1, 0.9)
        exact = 0.9 * old - 0.1 * X.double() * found.double()[..., None]
        errors += [error_of(torch.stack(params), exact) / 1e-6]
        say(f"rest {(number, n, m)}: errors in their units {[round(e, 2) for e in errors]}")
        is_right &= max(errors) < 1.0
    return is_right


# ----------------------------------------------------------------------------------------------
# Products
# ----------------------------------------------------------------------------------------------


def time_kernel(call: Callable[[], Any], repeats: int = 5) -> float:
    """Milliseconds per call on the GPU: median of replays of a graph of two calls."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
        call()
    times = []
    graph.replay()
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 2)
    return statistics.median(times)


def time_products(sizes: tuple[int, ...]) -> dict[int, Tile]:
    """Time all tiles and cuBLAS; return the best tile of each size."""
    cost: dict[tuple[int, Tile], float] = {}
    for title, number, size, inner, turned, form, weight in PRODUCTS:
        if size not in sizes:
            continue
        X = normal(*((number, inner, size) if turned else (number, size, inner)))
        X = (X / X.norm(dim=(1, 2), keepdim=True)).half()
        flops = 2.0 * number * size * size * inner
        out = torch.empty(number, size, size, device="cuda", dtype=torch.float16)
        if form != "square":
            X = matrix.symmetric_product(X)
        P = matrix.symmetric_product(X) if form == "mixed" else X
        case = f"{title} {number} x {size} x {inner}"
        calls: dict[str, Callable[[], Any]] = {}
        if form == "polynomial":
            calls["cuBLAS"] = lambda X=X, out=out: torch.baddbmm(
                X, X, X, beta=-4.775, alpha=2.0315, out=out
            )
        elif form == "mixed":
            calls["cuBLAS"] = lambda X=X, P=P, out=out: torch.bmm(X, P, out=out)
        else:
            pair = (X.mT, X) if turned else (X, X.mT)
            calls["cuBLAS"] = lambda pair=pair, out=out: torch.bmm(*pair, out=out)
            half = tuple(t.bfloat16() for t in pair)
            calls["cuBLAS bfloat16"] = lambda half=half: torch.bmm(*half)
        for tile in TILES:
            if form == "mixed" and tile.rows != tile.columns:
                continue
            options: dict[str, Any] = {"transpose": turned, "tile": tile}
            if form == "polynomial":
                options |= {"C": X, "alpha": 2.0315, "beta": -4.775, "diagonal": 3.4445}
            if form == "mixed":
                options |= {"Y": P}
            calls[str(tuple(tile))] = lambda X=X, out=out, options=options: (
                matrix.symmetric_product(X, out, **options)
            )
        said = []
        for name, call in calls.items():
            ms = time_kernel(call)
            note("product", case, name, ms=ms, tflops=flops / ms / 1e9)
            said.append(f"{name} {ms:.3f} ms ({flops / ms / 1e9:.0f})")
        say(f"{case}, time (TFLOP/s as if all were computed): {'; '.join(said)}")
        for tile in TILES:
            square = tile._replace(columns=tile.rows) if form == "mixed" else tile
            times = [
                r["ms"] for r in ROWS if r["case"] == case and r["contender"] == str(tuple(square))
            ]
            # A mixed product is of square tiles with the warps and stages of the others.
            ms = times[0] if times else math.nan
            cost[size, tile] = cost.get((size, tile), 0.0) + weight * ms
        del X, P, out, calls
        free()
    for number, n, m, turned in ((12, 768, 3072, False), (12, 768, 3072, True),
                                 (12, 768, 768, False),
                                 (24, 2048, 8192, False), (24, 2048, 8192, True)):  # fmt: skip
        if n not in sizes:
            continue
        for dtype in (torch.float16, torch.bfloat16):
            Q, X = normal(number, n, n, dtype=dtype), normal(number, n, m, dtype=dtype)
            X = X.mT.contiguous() if turned else X
            pair = (X, Q) if turned else (Q, X)
            out = torch.empty_like(X)
            ms = time_kernel(lambda pair=pair, out=out: torch.bmm(*pair, out=out))
            case = f"{'XQ' if turned else 'QX'} {number} x {n} x {m}"
            note("product", case, f"cuBLAS {dtype}", ms=ms, tflops=2.0 * Q.numel() * m / ms / 1e9)
            say(f"{case} cuBLAS {dtype}: {ms:.3f} ms ({2.0 * Q.numel() * m / ms / 1e9:.0f})")
        free()
    best = {}
    for size in sizes:
        # Tiles that are not square have no measured mixed product: the others decide there.
        known = {tile: c for (s, tile), c in cost.items() if s == size and math.isfinite(c)}
        best[size] = min(known, key=known.__getitem__)
        say(f"best tile of size {size}: {best[size]}; cost in ms of each: "
            + ", ".join(f"{tuple(t)} {c:.2f}" for t, c in known.items()))  # fmt: skip
    return best


# ----------------------------------------------------------------------------------------------
# Steps
# ----------------------------------------------------------------------------------------------


class Ours:
    """The step of matrices: momentum, polar factors, a number per row, update."""

    def __init__(self, params: list[Tensor], lr: float = 1e-3) -> None:
        shapes = dict.fromkeys(p.shape for p in params)
        self.groups = [[p for p in params if p.shape == shape] for shape in shapes]
        self.params = [p.detach() for group in self.groups for p in group]
        self.grads = [p.grad for group in self.groups for p in group]
        self.momenta = [torch.zeros_like(p) for p in self.params]
        self.batches = [
            torch.empty(len(group), *group[0].shape, device="cuda", dtype=torch.bfloat16)
            for group in self.groups
        ]
        self.averages = [torch.zeros(X.shape[:2], device="cuda") for X in self.batches]
        self.ones = [torch.ones(len(X), device="cuda") for X in self.batches]
        self.lr = lr
        self.mixed()
        self.orthogonal()
        self.scales()

    def mixed(self) -> None:
        self.squares = matrix.sources(self.grads, self.momenta, 0.95, self.batches)

    def orthogonal(self) -> None:
        self.results = matrix.polars(self.batches, squares=self.squares)

    def scales(self) -> None:
        self.rows = [
            matrix.row_scales(X, v, one, one, 0.95, 0.2 * math.sqrt(max(X.shape[1:])))
            for X, v, one in zip(self.results, self.averages, self.ones, strict=True)
        ]

    def update(self) -> None:
        matrix.update(self.params, self.results, self.rows, self.lr, 1.0 - 0.1 * self.lr)

    def step(self) -> None:
        self.mixed()
        self.orthogonal()
        self.scales()
        self.update()


class Batched:
    """Muon with cuBLAS, matrices of one shape in one batch: what one writes without kernels."""

    def __init__(self, params: list[Tensor], lr: float = 1e-3) -> None:
        self.ours = Ours(params, lr)

    def step(self) -> None:
        ours = self.ours
        torch._foreach_lerp_(ours.momenta, ours.grads, 0.05)
        sources = torch._foreach_lerp(ours.grads, ours.momenta, 0.95)
        first = 0
        for X in ours.batches:
            Y = torch.stack([s.bfloat16() for s in sources[first : first + len(X)]])
            is_tall = Y.shape[1] > Y.shape[2]
            Y = Y.mT if is_tall else Y
            Y = Y / Y.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
            for a, b, c in matrix.MUON:
                A = Y @ Y.mT
                Y = torch.baddbmm(Y, torch.baddbmm(A, A, A, beta=b, alpha=c), Y, beta=a)
            updates = list((Y.mT if is_tall else Y).float().unbind(0))
            torch._foreach_add_(ours.params[first : first + len(X)], updates, alpha=-ours.lr)
            first += len(X)


def time_step(call: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Milliseconds per call by the GPU's clock, and by the wall over several calls."""
    for _ in range(2):
        call()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()  # the GPU is busy when the second is launched
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    walls = []
    for _ in range(3):
        begin_time = time.perf_counter()
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
        walls.append(1e3 * (time.perf_counter() - begin_time) / rounds)
    return statistics.median(times), statistics.median(walls)


def time_steps(title: str, shapes: Lists, rounds: int) -> list[str]:
    params = []
    for number, shape in shapes:
        for _ in range(number):
            p = normal(*shape).requires_grad_()
            p.grad = normal(*shape)
            params.append(p)
    lines = []

    def add(name: str, gpu: float, wall: float) -> None:
        note("step", title, name, ms=gpu, wall_ms=wall)
        lines.append(f"{title:8s} {name:34s} {gpu:9.3f} ms by events {wall:9.3f} by wall")

    ours = Ours(params)
    # Polar factors of what is no longer a source would be those of other numbers.
    both = time_kernel(lambda ours=ours: (ours.mixed(), ours.orthogonal()), 7)
    stages = {"sources": time_kernel(ours.mixed, 7)}
    stages["polars"] = both - stages["sources"]
    ours.orthogonal()
    stages["row scales"] = time_kernel(ours.scales, 7)
    stages["update"] = time_kernel(ours.update, 7)
    for name, ms in stages.items():
        note("stage", title, name, ms=ms)
        lines.append(f"{title:8s}   stage {name:28s} {ms:9.3f} ms in a graph")
    add("ours", *time_step(ours.step, rounds))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours.step()
    add("ours, graph replay", *time_step(graph.replay, rounds))
    say("ours timed")
    del graph
    batched = Batched(params)
    add("batched Newton-Schulz by cuBLAS", *time_step(batched.step, max(3, rounds // 4)))
    del ours, batched
    free()
    say("batched timed")
    adamw = torch.optim.AdamW(params, fused=True)
    add("AdamW fused", *time_step(adamw.step, rounds))
    del adamw
    free()
    muon = torch.optim.Muon(params, lr=1e-3, momentum=0.95, nesterov=True)
    add("torch.optim.Muon", *time_step(muon.step, max(3, rounds // 4)))
    say("Muon timed")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", help="CSV to write")
    parser.add_argument("--quick", action="store_true", help="the small list alone")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("polar_time_gpu.py needs a CUDA device")
    torch.manual_seed(time.time_ns() % 2**31)
    verdicts = {}
    lines = []
    best: dict[int, Tile] = {}
    try:
        verdicts["products"] = check_products()
        verdicts["rest"] = check_rest()
        verdicts["polars"] = check_polars()
        free()
        best = time_products((768,) if arguments.quick else (768, 2048))
        table = [(256, Tile(64, 64, 64, 4, 3, False)), (1536, best[768])]
        table.append((math.inf, best.get(2048, best[768])))
        matrix._TILES_OF_HOPPER = tuple(table)
        lines += time_steps("GPT-2", GPT_2, 20)
        free()
        if not arguments.quick:
            lines += time_steps("1.2e9", LARGE, 5)
    except Exception:
        traceback.print_exc()
    finally:
        columns = ["section", "case", "contender", "ms", "wall_ms", "tflops", "error"]
        with open(arguments.out, "w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(ROWS)
    print(f"\nright: {verdicts}")
    for size, tile in best.items():
        print(f"best tile for {size}: {tile}")
    print("\n".join(lines))
    for title, bound, stretch in (("GPT-2", 3.86, 3.0), ("1.2e9", 90.0, 80.0)):
        of = {r["contender"]: r for r in ROWS if (r["section"], r["case"]) == ("step", title)}
        if "torch.optim.Muon" in of:
            mine = of["ours"]
            ratios = ", ".join(
                f"{mine['wall_ms'] / of[name]['wall_ms']:.3f} x {name}"
                for name in of
                if not name.startswith("ours")
            )
            print(f"{title}: {mine['ms']:.2f} ms (at most {bound}, hoped for {stretch}); {ratios}")


if __name__ == "__main__":
    main()
