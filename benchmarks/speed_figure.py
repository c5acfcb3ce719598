"""docs/figures/speed.png and .svg: steps as a multiple of fused AdamW, from the committed results.

python benchmarks/speed_figure.py
"""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib.figure import Figure
from measure import RESULTS

OUT = Path(__file__).parent.parent / "docs" / "figures"
# (file, workload, title of the panel)
PANELS = [
    ("step_time_gpu", "GPT list", "GPU, 245 tensors, 1.3e9"),
    ("step_time_gpu", "GPT list bfloat16", "GPU, the same in bfloat16"),
    ("step_time_cpu", "1e6", "CPU, one tensor of 1e6"),
    ("step_time_cpu", "1e7", "CPU, one tensor of 1e7"),
]
LEFT_OUT = ("loop", "copy", "ASGLD foreach", "ASG foreach", "posteriors")


def main() -> None:
    # As wide as a page of text, so that its letters are no smaller than they should be.
    figure = Figure(figsize=(9, 6), layout="constrained")
    for panel, (file, workload, title) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        with (RESULTS / f"{file}.csv").open() as rows:
            found = [
                (row["contender"], float(row["ratio_to_adamw_fused"]))
                for row in csv.DictReader(rows)
                if row["workload"] == workload and not any(w in row["contender"] for w in LEFT_OUT)
            ]
        found.sort(key=lambda pair: pair[1])
        names, ratios = zip(*found, strict=True)
        ours = ["#d94801" if name.startswith("AS") else "#9ecae1" for name in names]
        panel.barh(range(len(names)), [min(r, 4.0) for r in ratios], color=ours)
        panel.set_yticks(range(len(names)), names, fontsize=8)
        panel.axvline(1.0, color="black", linewidth=0.8)
        panel.set_xlim(0, 2.95)
        panel.invert_yaxis()
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("time of a step / fused AdamW's", fontsize=8)
        for i, ratio in enumerate(ratios):
            # In front of the line at one, which else runs through it.
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6} if ratio < 2.4 else None
            panel.text(min(ratio, 2.4) + 0.04, i, f"{ratio:.2f}", va="center", fontsize=8, bbox=box)
    OUT.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT / "speed.png", dpi=160)
    figure.savefig(OUT / "speed.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
