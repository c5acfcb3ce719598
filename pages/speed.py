"""Times and sizes: docs/speed.md, its appendix, scale.md, install.md, playground and README.md."""

from __future__ import annotations

from pages.results import Rows, Values, read, table

# A benchmark, from the folder that pages.results adds to the path.
import step_time_gpu as gpu  # isort: skip

SMALL, LARGE = "ResNet-50 list", "GPT list"
REPLAY, CAPTURABLE, MESH = "ASGLD, graph replay", "ASGLD, capturable", "ASGLD, sharded on one rank"
MOMENTUM = "ASGLD, decay, momentum, clip"
# A page's title of a row, and the contender it shows.
GPU_ROWS = {
    "ASGLD, alpha = beta = 1": "ASGLD",
    "ASGLD, general powers": "ASGLD, general powers",
    "ASG (no noise)": "ASG",
    "ASGLD with decay, momentum, clip": MOMENTUM,
    "ASGLD, capturable": CAPTURABLE,
    "ASGLD, replay of a CUDA graph": REPLAY,
    "ASGLD on a mesh of one rank": MESH,
}
GPU_COLUMNS = {
    "2^20": "2^20", "2^25": "2^25", "2^28": "2^28", "2^30": "2^30",
    "161 tensors, 2.6e7": SMALL, "245 tensors, 1.3e9": LARGE,
}  # fmt: skip
CPU_ROWS = {
    "ASGLD, kernel, alpha = beta = 1": "ASGLD fused",
    "ASGLD, kernel, general powers": "ASGLD fused, general powers",
    "ASGLD, kernel, decay, momentum, clip": "ASGLD fused, decay, momentum, clip",
    "ASG, kernel (no noise)": "ASG fused",
    "Adagrad, fused, torch": "Adagrad fused",
    "SGLD of torch-sgld": "torch-sgld SGLD",
    "SGLD of posteriors, gradient included": "posteriors SGLD (with gradient)",
    "ASGLD without the kernel, on lists": "ASGLD foreach",
}
# Rows and columns for users: the contender on a GPU and on a CPU, the workload on each.
SHORT_ROWS = {
    "ASGLD, alpha = beta = 1": ("ASGLD", "ASGLD fused"),
    "general powers": ("ASGLD, general powers", "ASGLD fused, general powers"),
    "no noise (ASG)": ("ASG", "ASG fused"),
    "decay, momentum, clip": (MOMENTUM, "ASGLD fused, decay, momentum, clip"),
    "replay of a CUDA graph": (REPLAY, ""),
    "no kernel": ("", "ASGLD foreach"),
}
SHORT_COLUMNS = {
    "GPU, 2^28 elements": ("2^28", ""), "GPU, 161 tensors": (SMALL, ""),
    "GPU, 245 tensors": (LARGE, ""), "CPU, 1e6 elements": ("", "1e6"),
    "CPU, 1e7 elements": ("", "1e7"), "CPU, 161 tensors": ("", SMALL),
}  # fmt: skip
CPU_COLUMNS = {
    "10,000 elements": "1e4", "1 million": "1e6", "10 million": "1e7",
    "ResNet-50's 161 tensors": SMALL,
}  # fmt: skip
GPU_RUNS = ("repeats/step_time_gpu_1", "step_time_gpu", "repeats/step_time_gpu_3")
CPU_RUNS = ("repeats/step_time_cpu_1", "repeats/step_time_cpu_2", "step_time_cpu")
BOUNDS = {
    "161 tensors: ASGLD against fused AdamW, or": (SMALL, "ASGLD", gpu.ADAMW),
    "161 tensors: ASGLD against a copy of as many bytes": (SMALL, "ASGLD", gpu.SAME_BYTES),
    "161 tensors: replay of a graph against the same without a graph": (SMALL, REPLAY, CAPTURABLE),
    "161 tensors: a mesh of one rank against the same without a mesh": (SMALL, MESH, "ASGLD"),
    "245 tensors: replay of a graph against the same without a graph": (LARGE, REPLAY, CAPTURABLE),
    "245 tensors: a mesh of one rank against the same without a mesh": (LARGE, MESH, "ASGLD"),
}
CHAINS = {
    "`asgld.run`, with its counts, records and stopping": "run",
    "the optimizer alone in a loop": "chains",
    "the same rule compiled by JAX's vmap": "jax vmap",
}
# Bytes that a step reads and writes for an element, and elements on a rank of the cluster's plan.
STEP_BYTES, PLAN_ELEMENTS = 20, 68_921_408

Cells = dict[tuple[str, str], float]


def values() -> Values:
    numbers, tables = dict[str, str](), dict[str, str]()
    for part in (_gpu(), _cpu(), _short(), _commits(), _others()):
        numbers |= part.numbers
        tables |= part.tables
    return Values(numbers, tables)


def _column(name: str, column: str) -> Cells:
    """A column of a file of step times, by workload and contender."""
    return {(row["workload"], row["contender"]): float(row[column]) for row in read(name)}


def _range(found: list[float], digits: int = 2) -> tuple[str, str]:
    return f"{min(found):.{digits}f}", f"{max(found):.{digits}f}"


def _gpu() -> Values:
    ratios, times = (
        _column("step_time_gpu", column) for column in ("ratio_to_adamw_fused", "median_us")
    )
    runs = [_column(name, "median_us") for name in GPU_RUNS]

    def digits(workload: str) -> int:
        # Times that vary more from run to run have fewer.
        return 2 if workload in ("2^20", SMALL) else 3

    def cell(contender: str, workload: str) -> str:
        found = ratios.get((workload, contender))
        return "" if found is None else f"{found:.{digits(workload)}f}"

    def against(run: Cells, workload: str, contender: str, base: str) -> str:
        if (workload, base) not in run:
            return ""
        return f"{run[workload, contender] / run[workload, base]:.3f}"

    limits = {(w, c, base): most for w, c, bases in gpu.BOUNDS for base, most in bases.items()}
    wide, narrow = (
        [run[f"{w} bfloat16", f"ASGLD, {kind} sum"] / run[f"{w} bfloat16", gpu.ADAMW]
         for w in ("2^28", LARGE) for run in runs]
        for kind in ("float32", "bfloat16")
    )  # fmt: skip
    small, adamw = ([run[SMALL, name] / 1e3 for run in runs] for name in ("ASGLD", gpu.ADAMW))
    numbers = {
        "gpu.speed": f"{STEP_BYTES * 2**30 / times['2^30', 'ASGLD'] / 1e6:.1f}",
        "gpu.replay-ms": f"{times[SMALL, REPLAY] / 1e3:.2f}",
        "gpu.first-run": f"{runs[0]['2^25', 'ASGLD'] / runs[0]['2^25', gpu.ADAMW]:.4f}",
        "scale.step-ms": f"{times[LARGE, 'ASGLD'] / 1e3:.2f}",
        "scale.mesh-ms": f"{times[LARGE, MESH] / 1e3:.2f}",
    }
    elements = next(int(r["elements"]) for r in read("step_time_gpu") if r["workload"] == LARGE)
    per_element = times[LARGE, "ASGLD"] / elements
    numbers["scale.speed"] = f"{STEP_BYTES / per_element / 1e6:.1f}"
    numbers["scale.plan-ms"] = f"{per_element * PLAN_ELEMENTS / 1e3:.2f}"
    for name, found in {
        "gpu.float32-sum": wide, "gpu.bfloat16-sum": narrow,
        "gpu.small-ms": small, "gpu.small-adamw-ms": adamw,
    }.items():  # fmt: skip
        numbers[f"{name}.low"], numbers[f"{name}.high"] = _range(found)
    tables = {
        "speed.gpu": table(
            ["step, noise on unless said", *GPU_COLUMNS],
            [[title, *(cell(c, w) for w in GPU_COLUMNS.values())] for title, c in GPU_ROWS.items()],
        ),
        "speed.bounds": table(
            ["a step against another", "at most", "first run", "second run", "third run"],
            [
                [title, f"{limits[key]:.2f}", *(against(run, *key) for run in runs)]
                for title, key in BOUNDS.items()
            ],
        ),
    }
    return Values(numbers, tables)


def _cpu() -> Values:
    ratios = _column("step_time_cpu", "ratio_to_adamw_fused")
    runs = [_column(name, "min_us") for name in CPU_RUNS]

    def cell(contender: str, workload: str) -> str:
        found = ratios[workload, contender]
        return f"{found:.2f}" if found < 10 else f"{found:.0f}"

    def quiet(run: Cells, workload: str) -> float:
        return run[workload, "ASG fused"] / run[workload, "Adagrad fused"]

    numbers = {}
    for i, run in enumerate(runs, 1):
        for key, workload in (("1e7", "1e7"), ("list", SMALL)):
            ratio = run[workload, "ASGLD fused"] / run[workload, "AdamW fused"]
            numbers[f"cpu.run{i}.{key}"] = f"{ratio:.2f}"
        numbers[f"cpu.run{i}.quiet"] = f"{quiet(run, '1e7'):.2f}"
    low, high = _range([quiet(run, SMALL) for run in runs])
    before = _column("repeats/step_time_cpu_0", "min_us")
    numbers |= {
        "cpu.quiet-list.low": low,
        "cpu.quiet-list.high": high,
        "cpu.before.quiet": f"{quiet(before, '1e7'):.3f}",
    }
    g = _column("step_time_gpu", "ratio_to_adamw_fused")
    ours = ("ASGLD fused", "ASGLD fused, decay, momentum, clip", "ASGLD foreach")
    tables = {
        "speed.cpu": table(
            ["step, noise on unless said", *CPU_COLUMNS],
            [[title, *(cell(c, w) for w in CPU_COLUMNS.values())] for title, c in CPU_ROWS.items()],
        ),
    }  # fmt: skip
    numbers["readme.gpu"] = f"{g[LARGE, 'ASGLD']:.2f}"
    numbers["readme.cpu"], _, numbers["readme.plain"] = (cell(name, "1e7") for name in ours)
    return Values(numbers, tables)


def _short() -> Values:
    """For users: the steps that matter, on a GPU and on a CPU."""
    gpu_ratios, cpu_ratios = (
        _column(f"step_time_{kind}", "ratio_to_adamw_fused") for kind in ("gpu", "cpu")
    )

    def cell(contenders: tuple[str, str], workloads: tuple[str, str]) -> str:
        pairs = zip((gpu_ratios, cpu_ratios), workloads, contenders, strict=True)
        found = [ratios[key] for ratios, *rest in pairs if (key := tuple(rest)) in ratios]
        return "".join(f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}" for ratio in found)

    lines = [
        [title, *(cell(contenders, workloads) for workloads in SHORT_COLUMNS.values())]
        for title, contenders in SHORT_ROWS.items()
    ]
    return Values({}, {"speed.short": table(["step, noise on unless said", *SHORT_COLUMNS], lines)})


def _commits() -> Values:
    """Steps of two commits in turn: what the proof of every step costs."""
    numbers = {}
    tiny, wide = "161 tensors of 64", "GPT list, a 16th as wide"

    def find(rows: Rows, workload: str, optimizer: str, gradients: str) -> dict[str, str]:
        wanted = (workload, optimizer, gradients, "wall")
        names = ("workload", "optimizer", "gradients", "clock")
        return next(row for row in rows if tuple(row[name] for name in names) == wanted)

    for run, name in enumerate(("repeats/step_time_commits_gpu_1", "step_time_commits_gpu"), 1):
        rows = read(name)
        small = find(rows, SMALL, "ASGLD", "in place")
        for column in ("ratio", "ratio_low", "ratio_high"):
            numbers[f"commits.gpu{run}.{column}"] = f"{float(small[column]):.2f}"
        for key, workload, gradients in (
            ("moved", SMALL, "moved"), ("large", LARGE, "in place"), ("large-moved", LARGE, "moved")
        ):  # fmt: skip
            ratio = float(find(rows, workload, "ASGLD", gradients)["ratio"])
            numbers[f"commits.gpu{run}.{key}"] = f"{ratio:.2f}"
        numbers["commits.gpu.old-ms"] = f"{float(small['old_median_us']) / 1e3:.2f}"
    rows = read("step_time_commits_cpu")
    small = find(rows, SMALL, "ASGLD", "in place")
    for column in ("ratio", "ratio_low", "ratio_high"):
        numbers[f"commits.cpu.{column}"] = f"{float(small[column]):.2f}"
    for key, gradients in (("wide", "in place"), ("wide-moved", "moved")):
        numbers[f"commits.cpu.{key}"] = (
            f"{float(find(rows, wide, 'ASGLD', gradients)['ratio']):.2f}"
        )
    for key, optimizer, gradients in (
        ("tiny", "ASGLD", "in place"), ("tiny-worst", "NetworkASGLD", "moved")
    ):  # fmt: skip
        row = find(rows, tiny, optimizer, gradients)
        per_tensor = (float(row["new_median_us"]) - float(row["old_median_us"])) / 161
        numbers[f"commits.cpu.{key}"] = f"{float(row['ratio']):.1f}"
        numbers[f"commits.cpu.{key}-us"] = f"{per_tensor:.1f}"
    return Values(numbers, {})


def _others() -> Values:
    """Chains, imports, frames of the playground."""
    chains = {row["contender"]: row for row in read("chains") if row["replicas"] == "1000"}
    numbers = {
        "chains.one-by-one": f"{float(chains['one by one']['median_s']):,.0f}",
        "chains.seconds": f"{float(chains['run']['median_s']):.1f}",
        "chains.times": f"{float(chains['run']['one_by_one_over_this']):,.0f}",
    }
    frames = read("playground_frames")
    for width in {row["width"] for row in frames}:
        scenes = [row for row in frames if row["width"] == width]
        slowest = min(float(row["frames_per_second"]) for row in scenes)
        numbers[f"frames.{width}"] = f"{slowest:.0f}"
        numbers[f"frames.{width}.ms"] = f"{max(float(row['processor_ms']) for row in scenes):.0f}"
    tables = {
        "speed.chains": table(
            ["", "seconds", "one chain after another takes"],
            [
                [title, f"{float(chains[name]['median_s']):.2f}",
                 f"{float(chains[name]['one_by_one_over_this']):,.0f} times as long"]
                for title, name in CHAINS.items()
            ],
        ),
        "install.import": table(
            ["", "processor time, median", "ratio of minima", "modules", "memory"],
            [
                [f"`import {row['import']}`", f"{float(row['median_us']) / 1e6:.2f} s",
                 f"{float(row['ratio_to_torch']):.2f}", row["modules"], f"{row['memory_mb']} MB"]
                for row in read("import_time")
            ],
        ),
    }  # fmt: skip
    return Values(numbers, tables)
