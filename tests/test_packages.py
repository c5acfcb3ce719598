"""What ships, and what a user without an optional package is told.

Installing the built packages in empty environments is the work of `.ci/packages.py`.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import asgld

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("packages", ROOT / ".ci" / "packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


PACKAGES = _script()
# The modules behind each extra.
BEHIND = {
    "scipy": "scipy",
    "cli": "typer",
    "plot": "matplotlib",
    "data": "sklearn",
    "sweep": "joblib",
}


def test_types_ship() -> None:
    assert (Path(asgld.__file__).parent / "py.typed").exists()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_every_extra_of_a_user_is_probed_and_explained() -> None:
    # The others are for running tests, benchmarks and examples.
    (everything,) = PROJECT["optional-dependencies"]["all"]
    extras = set(everything.removeprefix("asgld[").removesuffix("]").split(","))
    assert extras == set(PACKAGES.PROBES) == set(BEHIND)
    page = (ROOT / "docs" / "install.md").read_text()
    assert all(f"| `{extra}` |" in page for extra in extras)


@pytest.mark.parametrize("extra", BEHIND)
def test_missing_extra_is_named(extra: str) -> None:
    # None in sys.modules makes an import fail as if the package were not there.
    code = f"import sys; sys.modules[{BEHIND[extra]!r}] = None\n" + PACKAGES.EXAMINE
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps({extra: PACKAGES.PROBES[extra]})],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"asgld[{extra}]" in done.stdout.splitlines()[-1]


def test_version_is_said_once_and_right() -> None:
    assert asgld.__version__ == PROJECT["version"]
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()
