"""`asgld doctor`: what is installed, which backends can run here, and whether they work."""

from __future__ import annotations

import importlib.metadata
import platform

import torch
import typer
from rich.table import Table

import asgld
from asgld.cli.words import console as make_console
from asgld.optim import _native, plan

# The extras, and the packages that each brings.
EXTRAS = {
    "scipy": ("scipy",),
    "cli": ("typer", "rich"),
    "plot": ("matplotlib",),
    "data": ("scikit-learn",),
    "arviz": ("arviz",),
    "frameworks": ("accelerate", "lightning", "tensorboard", "transformers"),
}


def examine() -> None:
    """Print versions, hardware and a self-test of every backend; exit 1 if a test fails."""
    console = make_console()
    console.print(f"asgld {asgld.__version__}, Python {platform.python_version()}")
    console.print(
        f"torch {torch.__version__}, CPU capability {torch.backends.cpu.get_cpu_capability()}, "
        f"{torch.get_num_threads()} threads"
    )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    console.print(f"CUDA device: {gpu}")
    others = ("numpy", "triton", "asgld-study")
    console.print(", ".join(f"{name} {_version(name)}" for name in others))
    extras = Table("extra", "its packages")
    for extra, packages in EXTRAS.items():
        extras.add_row(extra, ", ".join(f"{name} {_version(name)}" for name in packages))
    console.print(extras)

    table = Table("backend", "available", "self-test")
    failed = False
    for name, device, options in (
        ("loop", "cpu", {"foreach": False, "fused": False}),
        ("foreach", "cpu", {"foreach": True}),
        ("fused, CPU (C)", "cpu", {"fused": True}),
        ("fused, GPU (Triton)", "cuda", {"fused": True}),
    ):
        reason = _why_not(device) if "fused" in name else None
        if reason is not None:
            table.add_row(name, f"no: {reason}", "")
            continue
        error = _largest_error(device, options)
        is_right = error < 1e-5
        failed |= not is_right
        verdict = "passed" if is_right else "FAILED"
        build = f": {_native.available_builds()[0]}" if "(C)" in name else ""
        table.add_row(name, f"yes{build}", f"{verdict}: differs from float64 by {error:.1e}")
    console.print(table)
    if failed:
        raise typer.Exit(1)


def _why_not(device: str) -> str | None:
    if device == "cuda" and not torch.cuda.is_available():
        return "there is no CUDA device"
    return plan.unavailable_reason([torch.zeros(1, device=device)])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _largest_error(device: str, options: dict[str, bool]) -> float:
    """The largest difference, after ten noisy steps, from the loop in double precision."""
    results = []
    for dtype, chosen in ((torch.float64, {"foreach": False}), (torch.float32, options)):
        x = torch.linspace(-1, 1, 1001, dtype=dtype, device=device).requires_grad_()
        optimizer = asgld.ASGLD([x], lr=0.1, sigma=0.1, **chosen)  # type: ignore[arg-type]
        for _ in range(10):
            x.grad = x.detach() ** 3
            optimizer.step()
        results.append(x.detach().double())
    return float((results[0] - results[1]).abs().max())
