"""Settings that every test shares."""

from __future__ import annotations

import pytest
import torch

# Two workers share two cores; a test that is about threads sets their number itself.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = {}
    if not config.getoption("--slow"):
        reasons["slow"] = "slow; run with --slow"
    if not torch.cuda.is_available():
        reasons["gpu"] = "no CUDA device"
    for item in items:
        for mark, reason in reasons.items():
            if mark in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
