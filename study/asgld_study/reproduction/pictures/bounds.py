"""Pictures of the lemmas and of Theorem 1: accumulator, terms."""

from __future__ import annotations

from typing import Any

import numpy as np

from asgld_study.experiments.accumulator import POWERS
from asgld_study.reproduction.pictures.drawing import INK, legend, line, panels, picture, series
from asgld_study.reproduction.runner import Outcomes


@picture(
    "accumulator",
    "accumulator",
    "Powers of D and their sums",
    "Points on the solid line agree with the lemma. On the right, points above the solid line "
    "for phi > 1 show sums that do not vanish.",
    "Two panels of measured exponents against phi with the lemmas' lines.",
)
def accumulator(o: Outcomes) -> Any:
    figure, axes = panels(1, 2, 3.0)
    for i, value in enumerate(o["accumulator"].values):
        label = f"{value['label']}, $\\delta$ = {value['delta']:g}"
        for panel, key, sign in ((axes[0, 0], "powers", -1), (axes[0, 1], "sums", 1)):
            panel.plot(
                POWERS,
                [sign * value[key][str(phi)]["value"] for phi in POWERS],
                linestyle="none",
                **series(i),
                label=label,
            )
    phi = np.linspace(0.4, 2.1, 50)
    axes[0, 0].plot(phi, phi, color=INK, linewidth=0.9)
    axes[0, 1].plot(phi, 1 - phi, color=INK, linewidth=0.9, label="Lemma")
    axes[0, 1].plot(
        phi, np.maximum(1 - phi, 0), color=INK, linewidth=0.9, linestyle="--", label="corrected"
    )
    axes[0, 0].set(title="Lemma 1", xlabel=r"$\phi$", ylabel=r"exponent of $E\,D^{-\phi}$")
    axes[0, 1].set(title="Lemma 2", xlabel=r"$\phi$", ylabel=r"exponent of $\sum Tr\,D^{-\phi}$")
    legend(figure, axes[0, 1], 3)
    return figure


@picture(
    "terms",
    "terms",
    "Theorem 1: measured over bound",
    "Above the line at 1 the bound is violated. Top: as published. Bottom: with the largest "
    "entry of D in place of the trace.",
    "Six panels of the ratio of the smallest expected squared gradient to the bound against k, "
    "one line per dimension.",
)
def terms(o: Outcomes) -> Any:
    labels = ("ASGLD (1, 1)", "AGLD (0, 1)", "ASG (1)")
    figure, axes = panels(2, 3, 4.6, sharex=True, sharey="row")
    for column, label in enumerate(labels):
        for i, value in enumerate(o["terms"].select(label=label)):
            for row, version in enumerate(("published", "corrected")):
                bound = np.sum([value[version][name] for name in ("I1", "I2", "I3")], axis=0)
                axes[row, column].plot(
                    value["k"],
                    np.array(value["smallest"]) / bound,
                    **line(i),
                    label=f"d = {value['dim']}",
                )
        axes[0, column].set_title(label)
        axes[1, column].set_xlabel("k")
    for row, version in enumerate(("published", "corrected")):
        axes[row, 0].set_ylabel(f"measured / {version}")
        for panel in axes[row]:
            panel.axhline(1.0, color=INK, linewidth=1.0)
            panel.set(xscale="log", yscale="log")
    legend(figure, axes[0, 0])
    return figure


PICTURES = (accumulator, terms)
