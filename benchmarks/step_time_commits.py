"""Time of one optimizer step of two commits, measured in turn in one run, as a ratio new / old.

    git worktree add ../old COMMIT
    python benchmarks/step_time_commits.py ../old .
    python benchmarks/step_time_commits.py ../old . --device cuda --csv FILE
    python benchmarks/step_time_commits.py ../old . --quick    small lists, few rounds

Without `--device` it measures on the CPU, and on a GPU where there is one. Each tree's package runs
in a process of its own, from the tree's sources whatever is installed, with a CPU kernel built for
this run. Both processes live on, and rounds of steps alternate between them: a slow spell of a
shared machine hits both alike. Where tensors happen to lie in memory shows in the time of a step,
so they are made several times over.

The ratio is the median of the ratios of single rounds, with an interval that holds the median of
such ratios in 95 of 100 cases if rounds are independent. Gradients stay in place, or move before
every step (`zero_grad` and other tensors, outside of the time taken). Clocks:

    wall    many steps, one synchronize at the end; where gradients move, each step has its own
    loop    on a GPU, where gradients move: many steps and the moves, one synchronize at the end
    host    on a GPU: few steps without a synchronize, what Python takes alone
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent.parent
OPTIMIZERS = ("ASGLD", "NetworkASGLD")
# (whether gradients move, clock)
SERIES = {
    "cpu": [(False, "wall"), (True, "wall")],
    "cuda": [(False, "wall"), (False, "host"), (True, "wall"), (True, "loop"), (True, "host")],
}
# So few that the queue of launches does not fill, and the host never waits.
HOST_STEPS = 20
MOST_STEPS = 2000
Shapes = list[tuple[int, tuple[int, ...]]]
Key = tuple[str, bool, str]


def use_tree(tree: Path) -> None:
    """Make `import asgld` take this tree's sources, also where another tree is installed."""
    # An editable installation's finder comes before sys.path.
    sys.meta_path[:] = [
        finder
        for finder in sys.meta_path
        if not {"editable", "asgld"} <= set(getattr(finder, "__module__", "").split("_"))
    ]
    sys.path.insert(0, str(tree / "src"))


# ----------------------------------------------------------------------------------------------
# The process of one tree. It knows the optimizers' names, and takes all else from its requests.
# ----------------------------------------------------------------------------------------------


class Session:
    """Answers requests: make tensors, build an optimizer on them, time its steps."""

    def __init__(self, package: Any, device: str) -> None:
        self.package, self.device = package, device
        self.params: list[Tensor] = []
        self.sets: list[list[Tensor]] = []
        self.optimizer: Any = None

    def make(self, shapes: Shapes) -> None:
        """Make parameters and two sets of gradients, in place of those before."""
        self.optimizer, self.params, self.sets = None, [], []
        self._free()
        torch.manual_seed(0)
        each = [shape for count, shape in shapes for _ in range(count)]
        self.params = [torch.randn(s, device=self.device).requires_grad_() for s in each]
        self.sets = [[torch.randn(s, device=self.device) for s in each] for _ in range(2)]

    def build(self, optimizer: str) -> None:
        """Build it with its defaults; they are to choose a kernel."""
        self.optimizer = None
        self._free()
        self.optimizer = getattr(self.package, optimizer)(self.params)
        for backend in self.optimizer.backends:
            if backend.name != "fused":
                raise RuntimeError(f"no kernel serves {optimizer}: {backend.reason}")

    def time(self, is_moved: bool, clock: str, steps: int) -> float:
        """Return seconds per step."""
        step = self.optimizer.step
        for i in range(2):  # what a change of gradients costs once, and the other process's caches
            self._place(i if is_moved else 0)
            step()
        self._synchronize()
        gc.disable()  # as timeit does
        total = 0.0
        if is_moved and clock != "loop":
            for i in range(steps):
                self._place(i % 2)
                if clock == "wall":
                    self._synchronize()
                start = time.perf_counter()
                step()
                if clock == "wall":
                    self._synchronize()
                total += time.perf_counter() - start
        else:
            start = time.perf_counter()
            for i in range(steps):
                if is_moved:
                    self._place(i % 2)
                step()
            if clock != "host":
                self._synchronize()
            total = time.perf_counter() - start
        gc.enable()
        self._synchronize()
        return total / steps

    def _place(self, i: int) -> None:
        """Give the parameters gradients at the addresses of a set, as new tensors."""
        self.optimizer.zero_grad(set_to_none=True)
        for p, grad in zip(self.params, self.sets[i], strict=True):
            p.grad = grad.detach()

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _free(self) -> None:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


def serve(tree: Path, device: str) -> None:
    """Answer requests from stdin, a line of JSON each, until it ends."""
    # Whatever else prints does so to stderr.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    use_tree(tree)
    import asgld

    if not Path(asgld.__file__).resolve().is_relative_to(tree / "src"):
        sys.exit(f"asgld was imported from {asgld.__file__}, not from {tree}")
    session = Session(asgld, device)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            reply = {"result": getattr(session, name)(*arguments)}
        except Exception as error:
            reply = {"reason": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


# ----------------------------------------------------------------------------------------------
# The process that asks
# ----------------------------------------------------------------------------------------------


class Refused(Exception):
    """A tree's process could not do what it was asked for."""


class Worker:
    """The process of one tree."""

    def __init__(self, tree: Path, device: str, native: Path | None) -> None:
        self.tree = tree
        environment = {k: v for k, v in os.environ.items() if k != "ASGLD_NATIVE_DIR"}
        if native is not None:
            environment["ASGLD_NATIVE_DIR"] = str(native)
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", str(tree), device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )  # fmt: skip

    def ask(self, name: str, *arguments: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(json.dumps([name, arguments]), file=self.process.stdin, flush=True)
            reply = json.loads(self.process.stdout.readline() or "null")
        except BrokenPipeError:
            reply = None
        if reply is None:
            raise RuntimeError(f"the process of {self.tree} ended at {name}; see above")
        if "reason" in reply:
            raise Refused(f"{self.tree.name}: {reply['reason']}")
        return reply["result"]

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()  # closes stdin, which ends it


def build_native(tree: Path, directory: Path) -> str | None:
    """Build a tree's CPU kernel into the directory; return why not where that fails."""
    if shutil.which("cmake") is None:
        return "cmake is not installed"
    if not (tree / "CMakeLists.txt").is_file():
        return f"{tree.name} has no CMakeLists.txt"
    for command in (["cmake", "-S", tree, "-B", directory], ["cmake", "--build", directory]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{tree.name}: {(done.stderr or done.stdout).strip()}"
    return None


def lists(device: str, is_quick: bool) -> dict[str, Shapes]:
    """What steps are taken on."""
    from step_time import RESNET_50, WORKLOADS
    from step_time_gpu import GPT

    # So little arithmetic that Python is what counts.
    tiny = {"161 tensors of 64": [(sum(count for count, _ in RESNET_50), (64,))]}
    if is_quick:
        return {**tiny, "1e4": WORKLOADS["1e4"]}
    if device == "cuda":
        large: dict[str, Shapes] = {"2^28": [(1, (1 << 28,))], "GPT list": GPT}
    else:
        smaller = [(count, tuple(n // 16 for n in shape)) for count, shape in GPT]
        large = {"1e7": WORKLOADS["1e7"], "GPT list, a 16th as wide": smaller}
    return {"ResNet-50 list": RESNET_50, **tiny, **large}


def interval(values: list[float], level: float = 0.95) -> tuple[float, float]:
    """Return the order statistics that hold the median of independent values this often, all of
    the values where they are too few for it."""
    ordered, n = sorted(values), len(values)
    outside, k = 0.0, 0
    while k < n // 2:
        outside += 2 * math.comb(n, k) / 2**n
        if outside > 1 - level:
            break
        k += 1
    return ordered[max(k - 1, 0)], ordered[n - max(k, 1)]


def compare(
    workers: list[Worker],
    shapes: Shapes,
    device: str,
    *,
    makes: int,
    rounds: int,
    seconds: float,
) -> dict[Key, tuple[list[float], list[float]]]:
    """Return seconds per step of the old and the new tree, round by round, of every series."""
    times: dict[Key, tuple[list[float], list[float]]] = {}
    steps: dict[Key, int] = {}
    for _ in range(makes):
        for worker in workers:
            worker.ask("make", shapes)
        for optimizer in OPTIMIZERS:
            for worker in workers:
                worker.ask("build", optimizer)
            for is_moved, clock in SERIES[device]:
                key = (optimizer, is_moved, clock)
                if key not in steps:
                    # The first times include what is compiled and loaded once.
                    for worker in workers:
                        worker.ask("time", is_moved, clock, 2)
                    once = max(worker.ask("time", is_moved, clock, 3) for worker in workers)
                    most = HOST_STEPS if clock == "host" else MOST_STEPS
                    steps[key] = min(max(1, round(seconds / once)), most)
                each = times.setdefault(key, ([], []))
                for _ in range(rounds):
                    for worker, found in zip(workers, each, strict=True):
                        found.append(worker.ask("time", is_moved, clock, steps[key]))
    return times


def row_of(old: list[float], new: list[float]) -> dict[str, float]:
    """Times of the two in microseconds, and their ratio."""
    ratios = [b / a for a, b in zip(old, new, strict=True)]
    low, high = interval(ratios)
    return {
        "rounds": len(ratios),
        "old_min_us": round(1e6 * min(old), 2),
        "old_median_us": round(1e6 * statistics.median(old), 2),
        "new_min_us": round(1e6 * min(new), 2),
        "new_median_us": round(1e6 * statistics.median(new), 2),
        "ratio": round(statistics.median(ratios), 4),
        "ratio_low": round(low, 4),
        "ratio_high": round(high, 4),
        "ratio_of_minima": round(min(new) / min(old), 4),
    }


def name_of(tree: Path) -> str:
    """The commit of a tree; the directory's name where it is no checkout of its own."""
    git = ["git", "-C", str(tree)]
    try:
        top, commit, changes = (
            subprocess.run([*git, *rest], capture_output=True, text=True, check=True).stdout.strip()
            for rest in (
                ["rev-parse", "--show-toplevel"],
                ["rev-parse", "--short=7", "HEAD"],
                ["status", "--porcelain", "--", "src", "native", "CMakeLists.txt"],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return tree.name
    if Path(top).resolve() != tree:
        return tree.name
    return f"{commit} and changes" if changes else commit


def measure_device(trees: list[Path], device: str, is_quick: bool) -> tuple[list[Any], bool]:
    """Return the rows of one device, and whether all of them could be measured."""
    rows: list[dict[str, Any]] = []
    is_whole = True
    with tempfile.TemporaryDirectory() as directory:
        natives: list[Path | None] = [None, None]
        if device == "cpu":
            for i, tree in enumerate(trees):
                native = Path(directory) / str(i)
                if reason := build_native(tree, native):
                    print(f"no rows for the CPU: {reason}")
                    return [], True
                natives[i] = native
        with (
            Worker(trees[0], device, natives[0]) as old,
            Worker(trees[1], device, natives[1]) as new,
        ):
            effort: dict[str, Any] = {"makes": 3, "rounds": 6, "seconds": 0.05}
            if is_quick:
                effort = {"makes": 2, "rounds": 3, "seconds": 0.01}
            for workload, shapes in lists(device, is_quick).items():
                try:
                    times = compare([old, new], shapes, device, **effort)
                except Refused as refused:
                    print(f"no rows for {workload} on {device}: {refused}")
                    is_whole = False
                    continue
                elements = sum(count * math.prod(shape) for count, shape in shapes)
                for (optimizer, is_moved, clock), (old_times, new_times) in times.items():
                    row = {
                        "workload": workload,
                        "elements": elements,
                        "device": device,
                        "optimizer": optimizer,
                        "gradients": "moved" if is_moved else "in place",
                        "clock": clock,
                        **row_of(old_times, new_times),
                    }
                    rows.append(row)
                    print(f"{device:4s} {workload:25s} {optimizer:12s} {row['gradients']:8s} "
                          f"{clock:4s} {row['old_median_us']:10.1f} us {row['new_median_us']:10.1f}"
                          f" us  {row['ratio']:.3f} ({row['ratio_low']:.3f} to "
                          f"{row['ratio_high']:.3f})", flush=True)  # fmt: skip
    return rows, is_whole


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        serve(Path(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, metavar="OLD_TREE", help="source tree of a commit")
    parser.add_argument("new", type=Path, metavar="NEW_TREE", help="source tree of another")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="both where there are both")
    parser.add_argument("--csv", type=Path, help="file to write")
    parser.add_argument("--quick", action="store_true", help="small lists, few rounds")
    arguments = parser.parse_args()
    trees = [arguments.old.resolve(), arguments.new.resolve()]
    for tree in trees:
        if not (tree / "src" / "asgld" / "__init__.py").is_file():
            parser.error(f"{tree} has no src/asgld")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no CUDA device")

    # The other benchmarks import asgld, which need not be installed here.
    use_tree(HERE)
    import measure

    names = [name_of(tree) for tree in trees]
    print(f"old: {names[0]}, new: {names[1]}")
    rows, is_whole = [], True
    for device in [arguments.device] if arguments.device else ["cpu", "cuda"]:
        if device == "cuda" and not torch.cuda.is_available():
            continue
        found, is_all = measure_device(trees, device, arguments.quick)
        is_whole &= is_all
        # Places on a machine are nothing for a row.
        command = f"python benchmarks/step_time_commits.py OLD_TREE NEW_TREE --device {device}"
        more = {"old": names[0], "new": names[1], "command": command}
        if device == "cpu":
            more["hardware"] = measure._processor()
        rows += [row | more for row in found]
    if not rows:
        sys.exit("nothing was measured")
    if arguments.csv:
        measure.write_csv(arguments.csv, rows)
    sys.exit(not is_whole)


if __name__ == "__main__":
    main()
