"""Imports go downward only. The table says what each part of the package may import of the rest."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

import asgld

PACKAGE = Path(asgld.__file__).parent

# part -> the parts it may import; a part may always import itself.
ALLOWED: dict[str, set[str]] = {
    # checks of arguments: every part may use them
    "arguments": set(),
    # mathematics: imports nothing of ours
    "noise": set(),
    "reference": set(),
    "theory": {"arguments"},
    # penalties: what f + g adds to f
    "prox": {"arguments"},
    # what users install us for; never the reference, so that their agreement is evidence
    "optim": {"noise", "prox"},
    "data": {"noise"},
    "distributed": {"noise", "optim"},
    # what is minimized, and the door to it
    "problems": {"arguments"},
    "oracle": {"prox"},
    "curvature": {"arguments", "oracle", "prox"},
    # update rules: they see an oracle, never a problem
    "methods": {"arguments", "noise", "optim", "oracle", "curvature", "prox"},
    # the loop, and the front door
    "run": {"methods", "oracle"},
    "_result": {"curvature", "oracle", "run"},
    "_minimization": {"_result", "curvature", "diagnostics", "methods", "oracle", "prox", "run"},
    "_minimize": {"_minimization", "_result", "arguments", "methods", "oracle", "run"},
    "_compare": {
        "_minimization",
        "_minimize",
        "_result",
        "curvature",
        "diagnostics",
        "methods",
        "oracle",
        "run",
    },
    # draws from a density, on the loop and the optimizers
    "sampling": {
        "_minimize",
        "arguments",
        "curvature",
        "data",
        "methods",
        "noise",
        "optim",
        "oracle",
        "run",
        "theory",
    },
    "scipy": {"_minimize", "_result", "curvature", "methods", "oracle", "run"},
    # a run against theory
    "diagnostics": {"arguments", "curvature", "methods", "optim", "oracle", "prox", "theory"},
    # the command line: parse, call, print
    "cli": {
        "_compare",
        "_minimize",
        "_result",
        "methods",
        "noise",
        "optim",
        "problems",
        "run",
        "theory",
    },
    "__main__": {"cli"},
}
OPTIONAL = {"scipy", "joblib", "typer", "rich", "matplotlib", "pandas", "sklearn", "triton"}


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _part(module: Path) -> str:
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def _imports(module: Path) -> set[str]:
    """Return the dotted names that a module imports anywhere, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: use absolute imports"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("module", _modules(), ids=lambda m: str(m.relative_to(PACKAGE)))
def test_imports_go_downward_only(module: Path) -> None:
    part = _part(module)
    if part == "__init__":
        return
    assert part in ALLOWED, f"say in ALLOWED what {part!r} may import"
    ours = {
        name.split(".")[1] for name in _imports(module) if name.startswith("asgld.") and "." in name
    }
    assert ours - {part} <= ALLOWED[part]


def test_the_study_is_a_client_of_public_modules() -> None:
    private = {
        f"{path.name}: {name}"
        for path in sorted((ROOT / "study" / "asgld_study").rglob("*.py"))
        for name in _imports(path)
        if name.startswith("asgld.") and any(part.startswith("_") for part in name.split("."))
    }
    assert private == set()


def test_the_library_does_not_know_the_study() -> None:
    assert not [m for m in _modules() if any(n.startswith("asgld_study") for n in _imports(m))]


def test_every_part_in_the_table_exists() -> None:
    assert set(ALLOWED) == {_part(m) for m in _modules()} - {"__init__"}


def test_importing_the_package_pulls_in_nothing_optional() -> None:
    code = "import sys, asgld; print(' '.join(m for m in sys.modules if '.' not in m))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    torch_alone = subprocess.run(
        [sys.executable, "-c", code.replace(", asgld", ", torch, numpy")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not (set(loaded) - set(torch_alone)) & OPTIONAL


def test_public_names_exist_and_are_documented() -> None:
    for name in asgld.__all__:
        assert getattr(asgld, name).__doc__, f"asgld.{name} has no docstring"
