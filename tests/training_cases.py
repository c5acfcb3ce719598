"""What the tests of benchmarks/training.py share: its modules, and how its files are read."""

from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
measure = importlib.import_module("measure")
training = importlib.import_module("training")
figures = importlib.import_module("training_figures")
gpt = importlib.import_module("training_gpt")
saddles = importlib.import_module("training_saddles")
summary = importlib.import_module("training_summary")
sys.path.remove(str(BENCHMARKS))

Rows = list[dict[str, str]]
WITHOUT_NOISE = {"SGD", "SGD, momentum", "AdamW", "Adagrad", "ASG", "NetworkASGLD, no noise"}


def read_csv(path: Path) -> Rows:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
