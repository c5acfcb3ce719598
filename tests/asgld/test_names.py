"""One name, one meaning: in both packages, read from the source and from the modules themselves."""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest
from helpers import ROOT

PACKAGES = {"asgld": ROOT / "src" / "asgld", "asgld_study": ROOT / "study" / "asgld_study"}
SOURCES = [
    (name, folder, path)
    for name, folder in PACKAGES.items()
    for path in sorted(folder.rglob("*.py"))
]


def _module(package: str, folder: Path, path: Path) -> str:
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))


def _definitions(path: Path) -> list[ast.FunctionDef | ast.ClassDef]:
    body = ast.parse(path.read_text()).body
    return [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict(list)
    for package, folder, path in SOURCES:
        for node in _definitions(path):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(_module(package, folder, path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_module_is_named_like_a_function_or_class_in_it() -> None:
    hidden = [
        _module(package, folder, path)
        for package, folder, path in SOURCES
        if any(node.name == path.stem for node in _definitions(path))
    ]
    assert hidden == []


@pytest.mark.parametrize(
    "name",
    [_module(p, f, path) for p, f, path in SOURCES if path.stem not in ("__main__", "__init__")],
)
def test_a_module_is_found_under_its_own_name(name: str) -> None:
    """`asgld.a.b` is the module of that name: no function of the package stands in its place."""
    parent, _, last = name.rpartition(".")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} needs what is not installed: {error}")
    found = getattr(importlib.import_module(parent), last)
    assert isinstance(found, ModuleType)
    assert found is module
