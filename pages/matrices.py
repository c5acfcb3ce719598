"""The times of the matrix step: docs/matrices.md."""

from __future__ import annotations

from pages.results import Values, read, table

# Benchmarks, from the folder that pages.results adds to the path.
import matrix_time_gpu as times  # isort: skip

STEPS = {
    "`NetworkASGLD`, noise on": times.OURS,
    "the same, no noise": "NetworkASGLD, no noise",
    "the same, replay of a CUDA graph": times.REPLAY,
    "the same in torch's operations, no noise": "NetworkASGLD, torch's operations, no noise",
    "torch's Muon": times.MUON,
    "torch's AdamW, fused": times.ADAMW,
    "five iterations of plain products, at the speed of a large one": times.LIMIT,
}


def values() -> Values:
    found = {
        (row["workload"], row["contender"]): float(row["median_us"]) / 1e3
        for row in read("matrix_time_gpu")
        if row["clock"] == "wall"
    }
    rows = [
        [title, *(f"{found[workload, name]:.1f}" for workload in times.LISTS)]
        for title, name in STEPS.items()
    ]
    small, large = times.LISTS
    numbers = {
        "matrix.small-over-muon": f"{found[small, times.OURS] / found[small, times.MUON]:.2f}",
        "matrix.large-over-muon": f"{found[large, times.OURS] / found[large, times.MUON]:.2f}",
        "matrix.small-over-limit": f"{found[small, times.OURS] / found[small, times.LIMIT]:.1f}",
        "matrix.replay-over-limit": f"{found[small, times.REPLAY] / found[small, times.LIMIT]:.1f}",
        "matrix.replay-ms": f"{found[small, times.REPLAY]:.1f}",
    }
    header = ["milliseconds a step", "GPT-2, 48 matrices, 8.5e7", "96 matrices, 1.2e9"]
    return Values(numbers, {"matrix.speed": table(header, rows)})
