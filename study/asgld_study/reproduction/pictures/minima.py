"""Picture of the way from a saddle to a minimum: minima."""

from __future__ import annotations

from typing import Any

from asgld_study.experiments import minima
from asgld_study.reproduction.pictures.drawing import legend, panels, picture, plain, series
from asgld_study.reproduction.runner import Outcomes


@picture(
    "minima",
    "minima",
    "Steps to a minimum",
    "Slopes are exponents. With noise fixed per coordinate the steps grow with d; with the "
    "total fixed they need not.",
    "Three panels of steps against accuracy and against dimension, one line per method.",
)
def steps_to_a_minimum(o: Outcomes) -> Any:
    figure, axes = panels(1, 3, 3.2, sharey=True)
    for i, label in enumerate(dict.fromkeys(v["label"] for v in o["minima"].values)):
        eps = minima.accuracies(label)
        value = o["minima"].one(label=label, dim=4, noise="fixed")
        axes[0, 0].plot(
            [1 / e for e in eps], [value["steps"][str(e)] for e in eps], **series(i), label=label
        )
        key = str(minima.COMPARED[eps])
        for panel, noise in ((axes[0, 1], "fixed"), (axes[0, 2], "total")):
            mine = o["minima"].select(label=label, noise=noise)
            panel.plot([v["dim"] for v in mine], [v["steps"][key] for v in mine], **series(i))
    for panel, title, name in zip(
        axes.flat,
        ("d = 4", "noise fixed per coordinate", "noise fixed in total"),
        ("1 / eps", "d", "d"),
        strict=True,
    ):
        panel.set(xscale="log", yscale="log", title=title, xlabel=name)
        plain(panel.xaxis, [4, 8, 16, 32, 64] if name == "d" else [2, 4, 8, 16])
    axes[0, 0].set_ylabel("steps to a minimum")
    legend(figure, axes[0, 0], 3)
    return figure


PICTURES = (steps_to_a_minimum,)
