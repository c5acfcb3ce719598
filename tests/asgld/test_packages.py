"""What ships, and what a user without an optional package is told.

Installing the built packages in empty environments is the work of `.ci/packages.py`.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from helpers import ROOT
from packaging.requirements import Requirement

import asgld
from asgld.cli.doctor import EXTRAS

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


def test_doctor_lists_the_extras_of_users() -> None:
    groups = PROJECT["optional-dependencies"]
    for extra in set(groups) - {"all", "bench", "dev"}:
        assert list(EXTRAS[extra]) == [Requirement(text).name for text in groups[extra]]
    assert set(EXTRAS) == set(groups) - {"all", "bench", "dev"}


def test_missing_extras_are_named() -> None:
    # None in sys.modules makes an import fail as if the package were not there.
    hide = f"import sys; sys.modules.update(dict.fromkeys({[*BEHIND.values()]!r}))\n"
    done = subprocess.run(
        [sys.executable, "-c", hide + PACKAGES.EXAMINE, json.dumps(PACKAGES.PROBES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    _, endings = json.loads(done.stdout.splitlines()[-1])
    assert set(endings) == set(BEHIND)
    assert [extra for extra, said in endings.items() if f"asgld[{extra}]" not in said] == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("", ""),
        ("import time; time.sleep(60)", "they take longer than 0.5 seconds to get here"),
        ("import sys; sys.exit('ERROR: no such file')", "ERROR: no such file"),
        ("import sys; sys.exit(3)", "pip ended with status 3"),
    ],
)
def test_installation_that_fails_says_why(code: str, reason: str) -> None:
    patience = 0.5 if "sleep" in code else 60.0
    assert PACKAGES.failure_of([sys.executable, "-c", code], patience) == reason


@pytest.mark.parametrize(
    ("failure", "is_ours"),
    [("ERROR: ResolutionImpossible: for help", True), ("they take longer than 9 seconds", False)],
)
def test_contradictory_constraints_fail_and_a_poor_machine_does_not(
    failure: str, is_ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []
    monkeypatch.setattr(PACKAGES.subprocess, "run", lambda command, **_: commands.append(command))
    monkeypatch.setattr(PACKAGES, "find_interpreter", lambda _: sys.executable)
    monkeypatch.setattr(PACKAGES, "failure_of", lambda *_: failure)
    row = PACKAGES.make_store("3.99", tmp_path / "asgld.whl", tmp_path, 9.0)
    assert (failure in row.problem) == is_ours
    assert (failure in row.extras) != is_ours
    assert any("compileall" in command for command in commands) != is_ours


def test_full_disk_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PACKAGES, "find_interpreter", lambda _: sys.executable)
    monkeypatch.setattr(PACKAGES, "ROOM", 1e30)
    row = PACKAGES.make_store("3.99", tmp_path / "asgld.whl", tmp_path, 9.0)
    assert not row.problem
    assert "need room" in row.extras


def test_what_pip_started_ends_with_it(tmp_path: Path) -> None:
    child = f"import time, pathlib; time.sleep(2); pathlib.Path({str(tmp_path / 'late')!r}).touch()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert "longer than 0.5" in PACKAGES.failure_of([sys.executable, "-c", code], 0.5)
    time.sleep(3)
    assert not (tmp_path / "late").exists()


def test_interpreter_that_is_not_here_is_a_row(tmp_path: Path) -> None:
    row = PACKAGES.make_store("2.99", tmp_path / "asgld.whl", tmp_path, 9.0)
    assert row == PACKAGES.Row("2.99", extras="this interpreter is not here")


@pytest.mark.parametrize(
    "platform",
    ["any", "manylinux_2_31_x86_64", "manylinux2014_x86_64.manylinux_2_17_x86_64", "win_amd64"],
)
def test_platforms_that_an_index_takes(platform: str) -> None:
    PACKAGES.check_tag(Path(f"asgld-0.2.0-py3-none-{platform}.whl"))


def test_platform_that_an_index_refuses() -> None:
    with pytest.raises(AssertionError, match="linux_x86_64"):
        PACKAGES.check_tag(Path("asgld-0.2.0-py3-none-linux_x86_64.whl"))


@pytest.mark.skipif(sys.platform != "linux", reason="auditwheel reads wheels of Linux")
def test_kernels_ask_for_no_library_beyond_the_system() -> None:
    """Else auditwheel would copy the library into the wheel, or refuse it."""
    from auditwheel.elfutils import elf_read_dt_needed

    kernels = [path for folder in asgld.optim.__path__ for path in Path(folder).glob("*.so")]
    if not kernels:
        pytest.skip("no kernel is built here")
    for kernel in kernels:
        needed = {name.split(".so")[0] for name in elf_read_dt_needed(kernel)}
        assert needed <= {"libc", "libm", "ld-linux-x86-64", "ld-linux-aarch64"}, kernel.name


def test_both_packages_have_one_version() -> None:
    assert asgld.__version__ == PROJECT["version"]
    study = tomllib.loads((ROOT / "study" / "pyproject.toml").read_text())["project"]
    assert study["version"] == PROJECT["version"]
    assert f"asgld[all]=={PROJECT['version']}" in study["dependencies"]
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
