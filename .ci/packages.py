"""Install the built packages in empty environments, use them, and print a table.

    make dist && python .ci/packages.py [--python 3.11 3.12 3.13] [--extra none scipy ... all study]
        [--patience SECONDS]

Two wheels come from the source archive: one made with a C compiler, one where the compiler fails,
as on a machine that has none. Each is installed without extras, with each extra alone, with all,
and with the study's wheel, on every version of Python that is found.

torch is gigabytes where an index has it for GPUs only, so dependencies are installed once per
version, with constraints.txt; each environment then gets links to what the wheel's metadata asks
for, and to nothing else. For the version that runs this script, they are in its own environment
already. A version whose interpreter or dependencies cannot be had gets a row that says why.
"""

from __future__ import annotations

import argparse
import email
import importlib.metadata
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
VERSIONS = ("3.11", "3.12", "3.13")
THIS_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

# Bytes that must be free before gigabytes are fetched, for two versions at a time.
ROOM = 16e9

# What a source archive must not pick up.
STRAYS = {".venv", "site-packages", "__pycache__"}
TOP_STRAYS = {"build", "dist", "site"}

# Platforms whose wheels an index takes. A bare `linux_x86_64` promises nothing about the system.
INDEXED = ("any", "manylinux", "musllinux", "macosx", "win")

# What each extra is for. Without it, the same line must end in an error that names it.
PROBES = {
    "scipy": "asgld.scipy_method(lambda x: float(x @ x), numpy.ones(2))",
    "cli": "sys.argv = ['asgld', 'doctor']; asgld.cli.main()",
    "plot": "asgld.theory.plots.region_map(resolution=20)",
    "data": "f = problem('digits'); f.value(torch.zeros(f.dim, dtype=torch.float64))",
}
# What the study adds to the command line. Without it, the line must end in an error that names it.
STUDY = "sys.argv = ['asgld', 'reproduce', '--list']; asgld.cli.main()"
# Run inside an environment: what works, and what those lines end in that do not.
EXAMINE = """
import contextlib, io, json, pathlib, sys
import numpy, torch
import asgld, asgld.cli, asgld.theory.plots
from asgld.problems import problem

saddle = lambda x: x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4
assert asgld.minimize(saddle, torch.zeros(2), method="agld").success
assert (pathlib.Path(asgld.__file__).parent / "py.typed").exists(), "py.typed is missing"
step = asgld.ASGLD([torch.zeros(3, requires_grad=True)]).backends[0].name
endings = {}
for name, line in json.loads(sys.argv[1]).items():
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            exec(line)
        endings[name] = ""
    except (Exception, SystemExit) as error:
        is_fine = getattr(error, "code", None) == 0
        endings[name] = "" if is_fine else f"{error!r} {said.getvalue()}"
print(json.dumps([step, endings]))
"""


@dataclass(frozen=True)
class Row:
    """One environment and what was seen in it."""

    python: str
    wheel: str = ""
    extra: str = ""
    step: str = ""
    doctor: str = ""
    extras: str = ""
    problem: str = ""


# ----------------------------------------------------------------------------------------------
# The packages
# ----------------------------------------------------------------------------------------------


def the_one(pattern: str, folder: Path) -> Path:
    """The only file of that pattern."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"{folder}: need one {pattern}, found {len(found)}; run `make clean dist`")
    return found[0]


def check_metadata(wheel: Path, source: Path) -> None:
    """Raise where an index would refuse the metadata or show no description."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        inside = next(name for name in names if name.endswith(".dist-info/METADATA"))
        texts = [archive.read(inside)]
        assert "asgld/py.typed" in names, f"{wheel.name}: type information is missing"
    with tarfile.open(source) as archive:
        strays = [
            n
            for n in archive.getnames()
            if STRAYS & set(Path(n).parts) or TOP_STRAYS & set(Path(n).parts[1:2])
        ]
        assert not strays, f"{source.name} contains {strays[0]} and {len(strays) - 1} more like it"
        name = f"{source.name.removesuffix('.tar.gz')}/PKG-INFO"
        member = archive.extractfile(name)
        assert member is not None
        texts.append(member.read())
    for text in texts:
        metadata = Metadata.from_email(text, validate=True)
        assert metadata.description, "there is no long description"
        assert metadata.description_content_type == "text/markdown"
        assert metadata.license_expression == "MIT"
    assert texts[0].split(b"\n\n")[0] == texts[1].split(b"\n\n")[0], "wheel and source disagree"


def check_tag(wheel: Path) -> None:
    """Raise where an index would refuse the platform in the wheel's name."""
    refused = [
        tag.platform
        for tag in parse_wheel_filename(wheel.name)[3]
        if not tag.platform.startswith(INDEXED)
    ]
    assert not refused, f"{wheel.name}: an index takes no wheel for {refused[0]}; run `make dist`"


def build_without_compiler(source: Path, folder: Path) -> Path:
    """The wheel that a machine without a C compiler makes of the source archive."""
    environment = {**os.environ, "CC": "false", "CXX": "false", "PIP_CONSTRAINT": str(CONSTRAINTS)}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder]
    subprocess.run([*command, source], env=environment, check=True)
    return the_one("*.whl", folder)


# ----------------------------------------------------------------------------------------------
# What packages ask for, and where it is
# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Store:
    """An interpreter, and a folder with the distributions that environments may link to."""

    version: str
    interpreter: str
    site: Path

    def distribution(self, name: str) -> importlib.metadata.Distribution:
        found = importlib.metadata.Distribution.discover(name=name, path=[str(self.site)])
        return next(iter(found))

    def applicable(self, texts: list[str], extras: set[str]) -> Iterator[Requirement]:
        """Those requirements that hold for this version of Python with one of the extras."""
        versions = {"python_version": self.version, "python_full_version": f"{self.version}.0"}
        for text in texts:
            wanted = Requirement(text)
            marker = wanted.marker
            if marker is None or any(
                marker.evaluate({**versions, "extra": extra}) for extra in extras | {""}
            ):
                yield wanted

    def link(self, wheel: Path, study: Path | None, extra: str, site: Path) -> None:
        """Link the requirements of the wheel, or of the study's, and theirs, into `site`."""
        own = required_by(wheel)
        pending = list(self.applicable(required_by(study) if study else own, {extra}))
        seen: set[str] = set()
        while pending:
            requirement = pending.pop()
            key = f"{requirement.name}[{','.join(sorted(requirement.extras))}]".lower()
            if key in seen:
                continue
            seen.add(key)
            if requirement.name == "asgld":  # an extra made of others
                pending += self.applicable(own, set(requirement.extras))
                continue
            distribution = self.distribution(requirement.name)
            pending += self.applicable(distribution.requires or [], set(requirement.extras))
            for top in {Path(file).parts[0] for file in distribution.files or ()}:
                is_ours = top not in ("..", "__pycache__") and (self.site / top).exists()
                if is_ours and not (site / top).exists():
                    (site / top).symlink_to(self.site / top)


def required_by(wheel: Path) -> list[str]:
    """The lines Requires-Dist of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        inside = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(inside)).get_all("Requires-Dist", [])


def find_interpreter(version: str) -> str | None:
    """A Python of this version, on the path or among pyenv's, that can make environments."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}")]
    candidates += map(str, sorted(root.glob(f"versions/{version}*/bin/python")))
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-m", "venv", "--help"], capture_output=True, check=False)
        if done.returncode == 0:
            return candidate
    return None


def make_store(version: str, wheel: Path, folder: Path, patience: float) -> Store | Row:
    """All that the wheel and its extras need, for this version; or why it cannot be had."""
    if version == THIS_VERSION:
        return Store(version, sys.executable, Path(sysconfig.get_paths()["purelib"]))
    interpreter = find_interpreter(version)
    if interpreter is None:
        return Row(version, extras="this interpreter is not here")
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < ROOM:
        room = f"{free / 1e9:.0f} GB free of {ROOM / 1e9:.0f}"
        return Row(version, extras=f"its dependencies need room: {room}")
    subprocess.run([interpreter, "-m", "venv", "--without-pip", folder], check=True)
    # Most of what torch brings is never imported here: compiling all of it takes half a minute.
    install = [*pip_in(folder), "install", "--quiet", "--no-compile"]
    failure = failure_of([*install, "-c", CONSTRAINTS, f"{wheel}[all]", "joblib"], patience)
    if not failure:
        return Store(version, interpreter, site_of(folder, version))
    if "ResolutionImpossible" in failure:  # not the machine's fault, but that of what we ask for
        return Row(version, problem=failure)
    # No torch for it on this machine. That its syntax is understood is all that can be seen.
    subprocess.run([*install, "--no-deps", wheel], check=True)
    compile_all = [folder / "bin" / "python", "-m", "compileall", "-q", "-f"]
    subprocess.run([*compile_all, site_of(folder, version) / "asgld"], check=True)
    reason = f"compiles; its dependencies cannot be installed: {failure[:120]}"
    return Row(version, extras=reason)


def failure_of(install: list[str | Path], patience: float) -> str:
    """Why an installation failed, in a line; empty if it did not."""
    # A session of its own, so that what pip has started ends with it.
    pip = subprocess.Popen(install, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, said = pip.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(pip.pid, signal.SIGKILL)
        pip.communicate()
        return f"they take longer than {patience:g} seconds to get here"
    if pip.returncode == 0:
        return ""
    errors = [line for line in said.splitlines() if line.startswith("ERROR")]
    return " ".join(errors) or f"pip ended with status {pip.returncode}"


def pip_in(environment: Path) -> list[str | Path]:
    return [sys.executable, "-m", "pip", "--python", environment / "bin" / "python"]


def site_of(environment: Path, version: str) -> Path:
    return environment / "lib" / f"python{version}" / "site-packages"


# ----------------------------------------------------------------------------------------------
# Environments
# ----------------------------------------------------------------------------------------------


def examine(store: Store, kind: str, wheel: Path, extra: str, folder: Path) -> Row:
    """Install the wheel with the extra, use it, and see what the missing extras say."""
    study = the_one("*.whl", ROOT / "dist" / "study") if extra == "study" else None
    subprocess.run([store.interpreter, "-m", "venv", "--without-pip", folder], check=True)
    store.link(wheel, study, extra, site_of(folder, store.version))
    wheels = [wheel, study] if study else [wheel]
    install = [*pip_in(folder), "install", "--quiet", "--no-index", "--no-deps", *wheels]
    subprocess.run(install, check=True)
    # Under the last, each environment would compile all that it imports from the store anew.
    hidden = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [folder / "bin" / "python", "-c", EXAMINE, json.dumps({**PROBES, "study": STUDY})],
        env={name: value for name, value in os.environ.items() if name not in hidden},
        cwd=folder,  # away from this tree, so that the installed package is the one imported
        capture_output=True,
        text=True,
        check=False,
    )
    row = Row(store.version, kind, extra)
    if done.returncode:
        return replace(row, problem=done.stderr)
    step, endings = json.loads(done.stdout.splitlines()[-1])
    problems = []
    if step != ("fused" if kind == "compiled" else "foreach"):
        problems.append(f"the default step of the {kind} wheel is {step!r}")
    given = set(PROBES) if extra in ("all", "study") else {extra} & set(PROBES)
    told = endings.pop("study")
    if (extra == "study") == bool(told):
        problems.append(f"`asgld reproduce` with{'' if study else 'out'} the study: {told!r}")
    elif "cli" in given and told and "asgld-study" not in told:
        problems.append(f"the study is missing, but the error does not name it: {told}")
    for name, ending in endings.items():
        if name in given and ending:
            problems.append(f"{name} is installed, but: {ending}")
        elif ending and f"asgld[{name}]" not in ending:
            problems.append(f"{name} is missing, but the error does not name it: {ending}")
    doctor = "passed" if "cli" in given else "names its extra"
    num_working = sum(not ending for ending in endings.values())  # scikit-learn brings scipy along
    extras = f"{num_working} work, {len(PROBES) - num_working} named when missing"
    return replace(row, step=step, doctor=doctor, extras=extras, problem="\n".join(problems))


def examine_all(
    versions: list[str], extras: list[str], wheels: dict[str, Path], patience: float
) -> Iterator[Row]:
    """Examine one version after the other, while dependencies of those to come are installed."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(max_workers=len(versions)) as installers,
        ThreadPoolExecutor(max_workers=os.cpu_count()) as examiners,
    ):
        folders = {version: Path(folder) / version for version in versions}
        stores = {
            version: installers.submit(
                make_store, version, wheels["compiled"], place / "store", patience
            )
            for version, place in folders.items()
        }
        for version, place in folders.items():
            store = stores[version].result()
            if isinstance(store, Row):
                yield store
            else:
                rows = [
                    examiners.submit(examine, store, kind, wheel, extra, place / f"{kind}-{extra}")
                    for (kind, wheel), extra in itertools.product(wheels.items(), extras)
                ]
                yield from (row.result() for row in rows)
            shutil.rmtree(place, ignore_errors=True)  # gigabytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    choices = ["none", *PROBES, "all", "study"]
    parser.add_argument("--python", nargs="+", default=list(VERSIONS), metavar="VERSION")
    parser.add_argument("--extra", nargs="+", default=choices, choices=choices)
    parser.add_argument(
        "--patience",
        type=float,
        default=900.0,
        metavar="SECONDS",
        help="how long the dependencies of another version may take to install",
    )
    options = parser.parse_args()

    source, wheel = the_one("*.tar.gz", ROOT / "dist"), the_one("*.whl", ROOT / "dist")
    check_metadata(wheel, source)
    check_tag(wheel)
    print(f"{source.name} ({source.stat().st_size / 1e6:.2f} MB) and {wheel.name} ", end="")
    print(f"({wheel.stat().st_size / 1e6:.2f} MB): metadata and description are in order")
    form = "{:8}{:10}{:7}{:9}{:17}{}".format
    print(form("python", "wheel", "extra", "step", "doctor", "extras"))
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        pure = build_without_compiler(source, Path(folder))
        wheels = {"compiled": wheel, "pure": pure}
        for row in examine_all(options.python, options.extra, wheels, options.patience):
            columns = (row.python, row.wheel, row.extra, row.step, row.doctor)
            print(form(*columns, "FAILED" if row.problem else row.extras), flush=True)
            if row.problem:
                failures.append(row)
    for row in failures:
        print(f"\n{row.python} {row.wheel} {row.extra}:\n{row.problem}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
