"""Matrices: docs/matrices.md, from the training suite and from the times of the matrix step."""

from __future__ import annotations

import math

from pages.results import Values, bold, read, table

# Benchmarks, from the folder that pages.results adds to the path.
import matrix_time_gpu as times  # isort: skip

# A page's title of a row, and the contender it shows.
CONTENDERS = {
    "AdamW": "adamw",
    "torch's Muon, and AdamW for the rest": "muon",
    "`NetworkASGLD(model)`": "matrix",
    "the same, no noise": "matrix-quiet",
    'the same, rows as they come (`shape="polar"`)': "matrix-no-rows",
    'the same, Muon\'s coefficients (`polar_by="muon"`)': "matrix-muon",
    '`NetworkASGLD(model, shape="coordinate")`': "coordinate",
}
TASKS = {
    "GPT, constant": ("gpt", "constant"),
    "GPT, cosine": ("gpt", "cosine"),
    "LSTM, cosine": ("rnn", "cosine"),
    "CNN, constant": ("cnn", "constant"),
    "ViT, cosine": ("vit", "cosine"),
    "autoencoder, cosine": ("autoencoder", "cosine"),
    "low-rank factorization, constant": ("factorization", "constant"),
}
DEFAULT_LR = 2e-3
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
    training, speed = _training(), _speed()
    return Values(training.numbers | speed.numbers, training.tables | speed.tables)


def _training() -> Values:
    loss = {
        (row["task"], row["schedule"], row["contender"], float(row["lr"])): float(
            row["validation_loss"]
        )
        for row in read("training_suite")
        if row["diverged"] == "False"
    }

    def curve(task: tuple[str, str], contender: str) -> dict[float, float]:
        return {key[3]: value for key, value in loss.items() if key[:3] == (*task, contender)}

    def best(task: tuple[str, str], contender: str) -> float:
        return min(curve(task, contender).values())

    def ratio(task: tuple[str, str], contender: str) -> float:
        return best(task, contender) / best(task, "adamw")

    hidden = [task for task in TASKS.values() if task[0] != "factorization"]

    def mean(contender: str, without: str = "") -> float:
        """The geometric mean of ratios, without the factorization; a task counts once."""
        names = {name for name, _ in hidden if name != without}
        tasks = {name: [ratio(t, contender) for t in hidden if t[0] == name] for name in names}
        logs = [sum(map(math.log, found)) / len(found) for found in tasks.values()]
        return math.exp(sum(logs) / len(logs))

    rows = []
    for title, contender in CONTENDERS.items():
        cells = [f"{ratio(task, contender):.3f}" for task in TASKS.values()]
        rows.append([title, *cells, bold(f"{mean(contender):.3f}", contender == "matrix")])
    at_default = [curve(task, "matrix")[DEFAULT_LR] / best(task, "matrix") for task in hidden]

    def scatter(task: tuple[str, str]) -> float:
        """Root mean square, in percent, of what noise alone changes at learning rates next to the
        best: how far a number may be trusted."""
        noisy, quiet = curve(task, "matrix"), curve(task, "matrix-quiet")
        middle = min(noisy, key=noisy.__getitem__)
        near = [lr for lr in noisy.keys() & quiet.keys() if middle / 2.1 < lr < middle * 2.1]
        logs = [math.log(noisy[lr] / quiet[lr]) for lr in near]
        return 100 * math.sqrt(sum(log * log for log in logs) / len(logs))

    spread = {task: scatter(task) for task in hidden}
    no_cnn = [mean(name, "cnn") for name in CONTENDERS.values() if name.startswith("matrix")]
    numbers = {
        "matrix.scatter": f"{max(s for task, s in spread.items() if task[0] != 'cnn'):.1f}",
        "matrix.scatter.cnn": f"{spread['cnn', 'constant']:.1f}",
        "matrix.no-cnn.low": f"{min(no_cnn):.3f}",
        "matrix.no-cnn.high": f"{max(no_cnn):.3f}",
        "matrix.no-cnn.muon": f"{mean('muon', 'cnn'):.3f}",
        "matrix.mean": f"{mean('matrix'):.2f}",
        "matrix.muon": f"{mean('muon'):.2f}",
        "matrix.coordinate": f"{mean('coordinate'):.2f}",
        "matrix.factorization": f"{ratio(TASKS['low-rank factorization, constant'], 'matrix'):.1f}",
        "matrix.factorization.muon": (
            f"{ratio(TASKS['low-rank factorization, constant'], 'muon'):.1f}"
        ),
        "matrix.default-lr.least": f"{100 * (min(at_default) - 1):.0f}",
        "matrix.default-lr.most": f"{100 * (max(at_default) - 1):.0f}",
        "matrix.runs": f"{len(loss)}",
    }
    return Values(numbers, {"matrix.training": table(["", *TASKS, "mean of five"], rows)})


def _speed() -> Values:
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
