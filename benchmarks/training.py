"""How the rules train: many kinds of networks, a GPT in detail, saddles, grown networks, few data.

    python benchmarks/training.py gpt          losses against lr, with and without a schedule
    ... --batch 64                             the same with other batches, to a file of its own
    python benchmarks/training.py saddles      who leaves an exact saddle, who a small start, when
    python benchmarks/training.py few-data     does annealed noise help the test loss?
    python benchmarks/training.py suite        many kinds of networks, many optimizers
    python benchmarks/training.py separation   how fast copies part, and what curvature predicts
    python benchmarks/training.py report       every figure, and every number of the pages
    python benchmarks/training.py figures      docs/figures/training from the CSV files
    python benchmarks/training.py summary      losses and ranges of lr of gpt, bounds kept or missed
    ... --only NAME                            one problem or size; for saddles an optimizer too,
                                               for gpt optimizer/schedule/lr; replaces the rows it
                                               repeats and keeps the others
    ... --quick                                seconds on a CPU; writes only where --out says

The modules named after the parts say how they are measured.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path

import torch
import training_few_data
import training_gpt
import training_saddles
from measure import RESULTS, merge_csv, write_csv

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "docs" / "figures" / "training"
# These have rows; suite and separation have options of their own.
PARTS = ("gpt", "saddles", "few-data")


def main() -> None:
    if sys.argv[1:2] in (["suite"], ["separation"]):
        from suite import running, separation

        {"suite": running, "separation": separation}[sys.argv[1]].main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=[*PARTS, "figures", "report", "summary"])
    parser.add_argument("--quick", action="store_true", help="seconds on a CPU")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop gpt after this long")
    parser.add_argument("--batch", type=int, default=16, help="sequences per step of gpt")
    parser.add_argument("--first-seed", type=int, default=0, help="gpt runs this seed and two more")
    parser.add_argument("--compile", action="store_true", help="compile the model of gpt")
    parser.add_argument("--only", action="append", default=[], help="a problem, a size, or a row")
    parser.add_argument("--out", help="CSV, or folder of figures, to write")
    arguments = parser.parse_args()
    if arguments.part in ("figures", "report"):
        import training_figures

        training_figures.draw(Path(arguments.out or FIGURES))
        if arguments.part == "report":
            subprocess.run([sys.executable, "-m", "pages"], cwd=ROOT, check=True)
        return
    if arguments.part == "summary":
        import training_summary

        kept = []
        for batch, name in ((16, "training_gpt.csv"), (64, "training_gpt_64.csv")):
            print(f"\nBatches of {batch}")
            kept.append(training_summary.summarize(training_summary.read(RESULTS / name)))
        sys.exit(not all(kept))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.part == "gpt" and device == "cpu" and not arguments.quick:
        sys.exit("gpt needs a CUDA device; --quick runs a small one on the CPU")
    name = arguments.part.replace("-", "_")
    if arguments.part == "gpt" and arguments.batch != 16:
        name += f"_{arguments.batch}"
    default = None if arguments.quick else RESULTS / f"training_{name}.csv"
    out = Path(arguments.out) if arguments.out else default
    if arguments.part == "gpt":
        work = training_gpt.GPTWork(
            arguments.quick,
            device,
            batch=arguments.batch,
            compiles=arguments.compile,
            first_seed=arguments.first_seed,
        )
        rows = training_gpt.measure_gpt(work, arguments.seconds, out, arguments.only)
    elif arguments.part == "saddles":
        rows = training_saddles.measure_saddles(arguments.quick, arguments.only)
    else:
        rows = training_few_data.measure_few_data(arguments.quick, arguments.only)
    if not rows:
        sys.exit(f"nothing was measured: --only {arguments.only} names no row")
    if out is not None:
        keys = {"saddles": training_saddles.KEYS, "few-data": training_few_data.KEYS}
        if arguments.part in keys:  # gpt writes as it goes
            if arguments.only:
                merge_csv(out, rows, keys[arguments.part])
            else:
                write_csv(out, rows)
        print(f"written to {out}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # what runs on a CPU is small: more threads wait for each other
    main()
