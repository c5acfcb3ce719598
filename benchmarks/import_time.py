"""What `import asgld` costs beside the `import torch` that it contains.

    python benchmarks/import_time.py

Fresh processes, in turn, round after round; the ratio is that of the minima, in seconds of the
processor, which a busy machine disturbs less than seconds of the clock. Weight is what a process
holds: modules, and megabytes of memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from measure import RESULTS, summarize, write_csv

ROUNDS = 12
MEASURE = """
import json, resource, sys, time
start = time.process_time()
import {module}
seconds = time.process_time() - start
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([seconds, len(sys.modules), memory]))
"""


def measure(module: str) -> list[float]:
    """Seconds, modules and megabytes of one fresh import."""
    code = MEASURE.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, modules, memory = json.loads(done.stdout)
    return [seconds, modules, memory]


def main() -> None:
    contenders = ("torch", "asgld")
    found: dict[str, list[list[float]]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name in contenders:
            found[name].append(measure(name))
    rows: list[dict[str, Any]] = []
    fastest = {name: min(run[0] for run in runs) for name, runs in found.items()}
    for name, runs in found.items():
        rows.append(
            {
                "import": name,
                **summarize([run[0] for run in runs]),
                "ratio_to_torch": f"{fastest[name] / fastest['torch']:.3f}",
                "modules": int(runs[0][1]),
                "memory_mb": f"{min(run[2] for run in runs):.0f}",
            }
        )
        print(rows[-1])
    write_csv(RESULTS / "import_time.csv", rows)


if __name__ == "__main__":
    main()
