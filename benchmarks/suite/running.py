"""One training, and many at once: the search for lr, other seeds, workers that share a GPU."""

from __future__ import annotations

import argparse
import csv
import functools
import importlib.util
import itertools
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measure import RESULTS, environment
from training_gpt import scheduled

from suite import data as sources
from suite import summary
from suite.contenders import CONTENDERS, Contender, Work
from suite.summary import Curve
from suite.tasks import TASKS, Task

SCHEDULES = ("constant", "cosine")
SEEDS = "0,1,2"
# The search for lr ends here; SGD needs more.
LOWEST, HIGHEST = 3e-5, 8.0
# A curve of the loss has so many points.
NUM_POINTS = 10
# A contender that wants to see batches before it starts sees so many.
NUM_BATCHES = 4
# Optimizers whose steps are timed alone, and how many steps.
TIMED, TIMED_STEPS = ("adamw", "muon", "coordinate", "matrix"), 30
PARTS = {None: "suite", "held-back": "held back"}
PARTS |= {part: part for part in ("large", "grown", "pilot")}
KEYS = ("size", "task", "contender", "schedule", "lr", "seed")


class Job(NamedTuple):
    task: str
    contender: str
    schedule: str
    lr: float
    seed: int

    @property
    def curve(self) -> Curve:
        return Curve(*self[:3])


@functools.cache
def tables(more: str | None) -> tuple[dict[str, Task], dict[str, Contender]]:
    """The tables, and those of a file, if one is given."""
    if more is None:
        return TASKS, CONTENDERS
    if not Path(more).is_file():
        sys.exit(f"--more {more}: there is no such file")
    spec = importlib.util.spec_from_file_location("more", more)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, "TASKS", {}), getattr(module, "CONTENDERS", {})
    if not any(found):
        sys.exit(f"{more} has neither TASKS nor CONTENDERS")
    for known, new in zip((TASKS, CONTENDERS), found, strict=True):
        if taken := known.keys() & new.keys():
            sys.exit(f"{more} names {', '.join(sorted(taken))}, which the suite has: rename it")
    return TASKS | found[0], CONTENDERS | found[1]


@functools.cache
def load_data(source: Callable[..., Any], sizes: tuple[Any, ...], device: str) -> Any:
    return source(dict(sizes), device)


class Stopwatch:
    """Milliseconds of some of the steps, without waiting for the device in between."""

    def __init__(self, device: str) -> None:
        self.is_cuda, self.marks = device == "cuda", []

    def mark(self) -> None:
        if self.is_cuda:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def median(self) -> float:
        if self.is_cuda:
            torch.cuda.synchronize()
        pairs = zip(self.marks[::2], self.marks[1::2], strict=True)
        return statistics.median(
            a.elapsed_time(b) if self.is_cuda else 1e3 * (b - a) for a, b in pairs
        )


def train(job: Job, task: Task, contender: Contender, size: str, device: str) -> dict[str, Any]:
    """Train once; the row."""
    begun = time.perf_counter()
    sizes = task.sizes(size)
    data, steps = load_data(task.data, tuple(sizes.items()), device), sizes["steps"]
    torch.manual_seed(job.seed)
    model = task.model(sizes).to(device)
    more = {}
    if contender.needs_work:
        few = torch.arange(sizes["batch"], device=device)
        batches = [data.batch(few + i * len(few)) for i in range(NUM_BATCHES)]
        more["work"] = Work(
            task.loss, batches, steps, lambda step: scheduled(job.schedule, step, steps)
        )
    optimizer = contender.build(model, job.lr, **more)
    rates = [group["lr"] for group in optimizer.param_groups]
    drawn = torch.Generator().manual_seed(1000 + job.seed)
    order = torch.randint(data.size, (steps, sizes["batch"]), generator=drawn).to(device)
    checks = list(data.checks())
    half = functools.partial(
        torch.autocast, device, torch.bfloat16, enabled=task.autocast and device == "cuda"
    )
    switch = hasattr(optimizer, "eval")  # schedule-free optimizers have a mode, as models do

    def check(batches: list[Any]) -> float:
        """Mean loss of held-out samples."""
        for each in (model, optimizer) if switch else (model,):
            each.eval()
        with torch.no_grad(), half():
            found = [float(task.loss(model, batch)) for batch in batches]
        for each in (model, optimizer) if switch else (model,):
            each.train()
        return statistics.fmean(found)

    def watch_model() -> None:
        if task.watch is not None:
            watched.append(task.watch(model, sizes))

    watched: list[float] = []
    watch_model()
    start, points = check(checks[:1]), []
    losses, watch, taken = torch.zeros(steps, device=device), Stopwatch(device), steps
    for step in range(steps):
        factor = scheduled(job.schedule, step, steps)
        for group, lr in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = lr * factor
        model.zero_grad(set_to_none=True)
        with half():
            loss = task.loss(model, data.batch(order[step]))
        loss.backward()
        losses[step] = loss.detach()
        is_timed = step >= steps // 2 and step % 5 == 0
        if is_timed:
            watch.mark()
        optimizer.step()
        if is_timed:
            watch.mark()
        if (step + 1) * NUM_POINTS // steps > step * NUM_POINTS // steps:
            points.append(check(checks[:1]))
            watch_model()
            if not math.isfinite(points[-1]) or points[-1] > 1e3 * start:
                taken = step + 1
                break
    value, last = check(checks), float(losses[taken - max(1, taken // 20) : taken].mean())
    diverged = not math.isfinite(value + last) or points[-1] > 2 * start
    return {
        "size": size, **job._asdict(), "steps": taken, "validation_loss": f"{value:.6g}",
        "training_loss": f"{last:.6g}", "points": " ".join(f"{point:.5g}" for point in points),
        "watched": " ".join(f"{number:.4g}" for number in watched),
        "optimizer_ms": f"{watch.median() if watch.marks else math.nan:.4g}",
        "diverged": diverged, "seconds": f"{time.perf_counter() - begun:.3g}",
    }  # fmt: skip


def run_job(job: Job, size: str, device: str, more: str | None) -> dict[str, Any] | str:
    """The row, or why there is none: in a process of its own, where an error ends one run only."""
    tasks, contenders = tables(more)
    try:
        return train(job, tasks[job.task], contenders[job.contender], size, device)
    except Exception as error:
        return f"FAILED: {type(error).__name__}: {error}"


# --- Many trainings. ---


def next_rates(first: tuple[float, ...], losses: dict[float, float]) -> list[float]:
    """The learning rates that the search wants: three, then one beyond the best if it is last."""
    if any(lr not in losses for lr in first):
        return list(first)
    rates = sorted(losses)
    best = min(rates, key=losses.__getitem__)
    if best == rates[0] and best / 2 >= LOWEST:
        return [float(f"{best / 2:g}")]
    if best == rates[-1] and 2 * best <= HIGHEST:
        return [float(f"{2 * best:g}")]
    return []


@dataclass
class Plan:
    """Which trainings are wanted next, given the rows so far."""

    curves: dict[Curve, Contender]
    seeds: list[int]
    lrs: list[float] | None  # None is a search
    rows: list[dict[str, Any]]
    is_brief: bool = False  # other seeds at the best lr alone, not at its neighbours
    given_up: set[Job] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.losses: dict[Curve, dict[float, dict[int, float]]] = {}
        for row in self.rows:
            self.add(row)

    def add(self, row: dict[str, Any]) -> None:
        curve = Curve(*(row[key] for key in KEYS[1:4]))
        of_rate = self.losses.setdefault(curve, {}).setdefault(float(row["lr"]), {})
        of_rate[int(row["seed"])] = summary.loss_of(row)

    def jobs(self) -> Iterator[Job]:
        for curve, contender in self.curves.items():
            found = self.losses.get(curve, {})
            for job in self.wanted(curve, contender, found):
                if job.seed not in found.get(job.lr, {}) and job not in self.given_up:
                    yield job

    def wanted(self, curve: Curve, contender: Contender,
               found: dict[float, dict[int, float]]) -> Iterator[Job]:  # fmt: skip
        first, *others = self.seeds
        if self.lrs is not None:
            yield from (Job(*curve, lr, seed) for lr in self.lrs for seed in self.seeds)
            return
        losses = {lr: of_rate[first] for lr, of_rate in found.items() if first in of_rate}
        rates = next_rates(contender.first_lrs, losses)
        if rates:
            yield from (Job(*curve, lr, first) for lr in rates)
            return
        best = min(losses, key=losses.__getitem__)
        reach = 1.1 if self.is_brief else 2.1
        near = [lr for lr in sorted(losses) if best / reach < lr < reach * best]
        default = [] if contender.default_lr is None else [contender.default_lr]
        for lr in dict.fromkeys(near + default):
            yield from (Job(*curve, lr, seed) for seed in (first, *others))


def drop_half_line(path: Path) -> None:
    """A run that was killed may have left a line without its end."""
    if path.exists() and not (text := path.read_text()).endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1])


def refuse_stale(rows: list[dict[str, Any]], tasks: dict[str, Task], size: str, out: Path) -> None:
    """Rows of a task that had another length say nothing of the task as it is now."""
    for row in rows:
        task = tasks.get(row["task"])
        steps = task and str(task.sizes(size)["steps"])
        if task and row["diverged"] == "False" and row["steps"] != steps:
            sys.exit(f"{out} has rows of {row['task']} with {row['steps']} steps, not {steps}: "
                     "give another --out, or remove them")  # fmt: skip


def append_row(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def run_plan(plan: Plan, out: Path, size: str, device: str, workers: int, seconds: float,
             more: str | None) -> None:  # fmt: skip
    """Run what the plan wants until it wants no more or time is up, `workers` trainings at once."""
    begun, count = time.time(), 0
    here: dict[str, str] = {}

    def finish(job: Job, row: dict[str, Any] | str) -> None:
        said = f"{job.task:13s} {job.contender:18s} {job.schedule:8s} lr {job.lr:<8g}"
        spent = f"({time.time() - begun:.0f} s)"
        if isinstance(row, str):
            plan.given_up.add(job)
            print(f"{said} {row}  {spent}", flush=True)
            return
        plan.add(row)
        if not here:
            here.update(described(device))
        append_row(out, row | here)
        figures = f"{row['validation_loss']:>9s}, {row['optimizer_ms']} ms, {row['seconds']} s"
        print(f"{said} seed {job.seed} {figures}  {spent}", flush=True)

    if workers == 0:
        while time.time() - begun < seconds and (job := next(plan.jobs(), None)):
            finish(job, run_job(job, size, device, more))
        return
    running: dict[Future[Any], Job] = {}
    with ProcessPoolExecutor(
        workers, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        while True:
            if time.time() - begun < seconds:
                waiting = set(running.values())
                wanted = (job for job in plan.jobs() if job not in waiting)
                for job in itertools.islice(wanted, workers - len(running)):
                    running[pool.submit(run_job, job, size, device, more)] = job
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                count += 1
                finish(running.pop(future), future.result())
    spent = time.time() - begun
    print(f"{count} trainings in {spent:.0f} s, {spent * workers / max(count, 1):.1f} s each")


def described(device: str) -> dict[str, str]:
    """Hardware, versions and command, as every row has them; the name of the GPU by nvidia-smi, as
    this process must not open the device."""
    return environment(None if device == "cpu" else _gpu_name())


def _gpu_name() -> str:
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    said = subprocess.run(asked, check=False, capture_output=True, text=True).stdout
    return said.splitlines()[0] if said else "CUDA"


def find_device() -> str:
    """cuda if a process of its own can use it: this one must not open the device before MPS."""
    if not Path("/dev/nvidiactl").exists():
        return "cpu"
    code = "import torch; torch.zeros(1, device='cuda')"
    try:
        tried = subprocess.run([sys.executable, "-c", code], check=False, timeout=120)
    except subprocess.TimeoutExpired:
        return "cpu"
    return "cpu" if tried.returncode else "cuda"


@contextmanager
def shared_gpu() -> Iterator[str]:
    """The device; where there is NVIDIA's multi-process service and it works, it runs meanwhile."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or not Path("/dev/nvidiactl").exists():
        yield find_device()
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        os.environ |= dict.fromkeys(names, folder)
        silent = subprocess.DEVNULL  # it lives on and would hold the pipes of this process open
        subprocess.run([control, "-d"], check=False, stdout=silent, stderr=silent)
        device = find_device()
        print(f"multi-process service: {'used' if device == 'cuda' else 'does not work'}")
        if device == "cpu":
            _quit(control)
            for name in names:
                del os.environ[name]
            device = find_device()
            control = ""
        try:
            yield device
        finally:
            if control:
                _quit(control)


def _quit(control: str) -> None:
    try:
        subprocess.run([control], input="quit\n", text=True, check=False, timeout=30)
    except subprocess.TimeoutExpired:
        print("the multi-process service does not end")


def time_steps(tasks: list[str], contenders: list[str], size: str, device: str, out: Path,
               more: str | None) -> None:  # fmt: skip
    """Milliseconds of whole steps and of the optimizer alone, with nothing else on the device."""
    known, all_contenders = tables(more)
    for name in tasks:
        task, sizes = known[name], known[name].sizes(size)
        data = load_data(task.data, tuple(sizes.items()), device)
        index = torch.arange(sizes["batch"], device=device)
        for who in contenders:
            torch.manual_seed(0)
            model = task.model(sizes).to(device)
            optimizer = all_contenders[who].build(model, 1e-3)
            whole, alone = Stopwatch(device), Stopwatch(device)
            for step in range(TIMED_STEPS):
                is_timed = step >= TIMED_STEPS // 3
                if is_timed:
                    whole.mark()
                model.zero_grad(set_to_none=True)
                is_half = task.autocast and device == "cuda"
                with torch.autocast(device, torch.bfloat16, enabled=is_half):
                    loss = task.loss(model, data.batch(index))
                loss.backward()
                if is_timed:
                    alone.mark()
                optimizer.step()
                if is_timed:
                    alone.mark()
                    whole.mark()
            row = {
                "size": size,
                "task": name,
                "contender": who,
                "step_ms": f"{whole.median():.4g}",
                "optimizer_ms": f"{alone.median():.4g}",
            }
            print(row, flush=True)
            append_row(out, row | described(device))  # fmt: skip


def names(allowed: Any, given: str | None, default: list[str], what: str) -> list[str]:
    chosen = default if given is None else given.split(",")
    if unknown := [name for name in chosen if name not in allowed]:
        sys.exit(f"unknown {what} {', '.join(unknown)}; there are {', '.join(allowed)}")
    return chosen


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("training.py suite", description="Train networks.")
    parser.add_argument("--prepare", action="store_true", help="make the data in .bench-data")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--time", action="store_true", help="time steps, one training at a time")
    parser.add_argument("--tasks", help="names, or held-back, or large; default: the suite")
    parser.add_argument("--contenders")
    parser.add_argument("--schedules", help="constant, cosine; default: both")
    parser.add_argument("--lrs", help="a grid; without it, a search")
    parser.add_argument("--seeds", default=SEEDS)
    parser.add_argument("--brief", action="store_true", help="other seeds at the best lr alone")
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--workers", type=int, help="trainings at once; 0: in this process")
    parser.add_argument("--more", help="a file of tasks and contenders")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    if given.prepare:
        sources.prepare()
        return
    if given.out is None and not given.table and (given.more or given.size == "tiny"):
        sys.exit("--more and --size tiny need --out: the committed results are of the suite itself")
    out = given.out or RESULTS / ("training_step_time.csv" if given.time else "training_suite.csv")
    if not given.table:
        begun, (known, contenders) = time.time(), tables(given.more)
        part = PARTS.get(given.tasks, "")
        of_part = [name for name, task in known.items() if task.part == part]
        chosen = names(known, None if part else given.tasks, of_part, "task")
        default = list(TIMED) if given.time else list(contenders)
        who = names(contenders, given.contenders, default, "contender")
        for name in [name for name in who if contenders[name].why_not()]:
            print(f"left out: {name}, since {contenders[name].why_not()}")
            who.remove(name)
        schedules = names(SCHEDULES, given.schedules, list(SCHEDULES), "schedule")
        with shared_gpu() as device:
            if given.time:
                time_steps(chosen, who, given.size, device, out, given.more)
                return
            curves = {
                Curve(task, name, schedule): contenders[name]
                for task in chosen
                for name in who
                if task in (contenders[name].tasks or known)
                and (contenders[name].part == "suite" or known[task].watch is not None)
                for schedule in schedules
                if schedule in contenders[name].schedules
            }
            drop_half_line(out)
            rows = [row for row in summary.read_rows(out) if row["size"] == given.size]
            refuse_stale(rows, known, given.size, out)
            lrs = [float(lr) for lr in given.lrs.split(",")] if given.lrs else None
            plan = Plan(curves, [int(seed) for seed in given.seeds.split(",")], lrs, rows,
                        given.brief)  # fmt: skip
            workers = given.workers
            if workers is None:
                workers = 16 if device == "cuda" else 0
            left = given.seconds - (time.time() - begun)
            run_plan(plan, out, given.size, device, workers, left, given.more)
    print(summary.table([row for row in summary.read_rows(out) if row["size"] == given.size]))
    if not given.table and plan.given_up:
        sys.exit(f"{len(plan.given_up)} trainings failed")
