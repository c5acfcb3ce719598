"""Pictures: the same bytes for the same results, in any process."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from asgld_study import drawing
from asgld_study.engine import Outcomes
from asgld_study.paper import EXPERIMENTS, PICTURES


def test_figures_are_the_same_bytes_for_the_same_results(measured: Outcomes) -> None:
    picture = next(p for p in PICTURES if p.name == "plateau")
    once, again = (picture.render(measured, ("svg", "png")) for _ in range(2))
    assert once == again
    assert once["png"].startswith(b"\x89PNG")


@pytest.mark.parametrize("part", [*PICTURES, *EXPERIMENTS], ids=lambda part: part.name)
def test_parts_of_a_topic_travel_to_other_processes(part: object) -> None:
    assert pickle.loads(pickle.dumps(part)) is part


def test_a_picture_is_described_by_its_docstring() -> None:
    @drawing.picture("some", also=("other",))
    def some(_: Outcomes) -> object:
        """Title

        What to
        look at.

        What is drawn.
        """

    assert (some.title, some.caption, some.alt) == ("Title", "What to look at.", "What is drawn.")
    assert (some.name, some.experiment, some.also) == ("some", "some", ("other",))


def test_values_beyond_an_axis_are_moved_onto_it() -> None:
    found = drawing.clipped([1e-9, 1.0, np.inf, np.nan])
    assert found.tolist() == [1e-5, 1.0, 1e6, 1e6]
