"""What `import asgld` costs beside the `import torch` that it contains.

    python benchmarks/import_time.py

Fresh processes, in turn, round after round; the ratio is that of the minima, in seconds of the
processor, which a busy machine disturbs less than seconds of the clock. The row of asgld also has
the median of the ratios of neighbors in time. `modules` and `memory_mb` are what a process holds,
`modules_of_ours` and `rivals` how many of the modules are of this package and of its rivals.
"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median
from typing import Any

from measure import RESULTS, summarize, write_csv

ROUNDS = 12
MEASURE = """
import json, resource, sys, time
start = time.process_time()
import {module}
seconds = time.process_time() - start
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({{
    "seconds": seconds,
    "memory": memory,
    "modules": len(sys.modules),
    "ours": sum(name.partition(".")[0] == "asgld" for name in sys.modules),
    "rivals": sum(name.startswith("asgld.methods.rivals") for name in sys.modules),
}}))
"""


def measure(module: str) -> dict[str, float]:
    """Seconds, modules and megabytes of one fresh import."""
    code = MEASURE.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    contenders = ("torch", "asgld")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name in contenders:
            found[name].append(measure(name))
    rows: list[dict[str, Any]] = []
    seconds = {name: [run["seconds"] for run in runs] for name, runs in found.items()}
    for name, runs in found.items():
        pairs = zip(seconds[name], seconds["torch"], strict=True)
        rows.append(
            {
                "import": name,
                **summarize(seconds[name]),
                "ratio_to_torch": f"{min(seconds[name]) / min(seconds['torch']):.3f}",
                "median_ratio": f"{median(mine / torch for mine, torch in pairs):.3f}",
                "modules": int(runs[0]["modules"]),
                "modules_of_ours": int(runs[0]["ours"]),
                "rivals": int(runs[0]["rivals"]),
                "memory_mb": f"{min(run['memory'] for run in runs):.0f}",
            }
        )
        print(rows[-1])
    write_csv(RESULTS / "import_time.csv", rows)


if __name__ == "__main__":
    main()
