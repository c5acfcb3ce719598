"""Picture of what the rule is said to be good for: features."""

from __future__ import annotations

from typing import Any

import numpy as np

from asgld_study.reproduction.pictures.drawing import legend, panels, picture, series
from asgld_study.reproduction.runner import Outcomes


@picture(
    "features",
    "features",
    "Rare features",
    "Lower is better. Compare the lowest point of each line, and how wide its valley is.",
    "Two panels of the final objective against lr, one line per method.",
)
def features(o: Outcomes) -> Any:
    figure, axes = panels(1, 2, 3.0, sharey=True)
    for panel, (zipf, title) in zip(
        axes.flat, ((True, "most features rare"), (False, "all equally frequent")), strict=True
    ):
        for i, label in enumerate(dict.fromkeys(v["label"] for v in o["features"].values)):
            mine = o["features"].select(label=label, zipf=zipf, seed=0)
            panel.plot(
                [v["lr"] for v in mine],
                [np.mean(v["final"]) for v in mine],
                **series(i),
                label=label,
            )
        panel.set(xscale="log", ylim=(0.0, 1.0), title=title, xlabel="lr")
    axes[0, 0].set_ylabel("objective at the end")
    legend(figure, axes[0, 0])
    return figure


PICTURES = (features,)
