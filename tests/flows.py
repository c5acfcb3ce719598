"""Which files of ours does a flow enter? A reader must know these to follow it.

    python tests/flows.py                  all four flows, and how many files each enters
    python tests/flows.py step             three steps of ASGLD on a small model, file by file
    python tests/flows.py minimize         asgld.minimize on a saddle in two dimensions
    python tests/flows.py reproduce        asgld reproduce, claim E1 alone
    python tests/flows.py table1           asgld reproduce, Table 1 alone
    ... --source FOLDER                    packages from another tree; may be repeated

A file is entered when a function of it is called. Each flow runs twice and the second run counts,
so that imports and caches do not.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGES = ("asgld", "asgld_study")


def step() -> None:
    import torch

    import asgld

    model = torch.nn.Linear(3, 2)
    optimizer = asgld.ASGLD(model.named_parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()


def minimize() -> None:
    import torch

    import asgld

    result = asgld.minimize(
        lambda x: x[0] ** 2 - x[1] ** 2 / 2 + x[1] ** 4 / 4, torch.zeros(2), method="agld"
    )
    assert result.success


def reproduce(experiment: str = "dimension") -> None:
    app = importlib.import_module("asgld.cli").build_app()
    options = ["--only", experiment, "--size", "tiny", "--jobs", "1"]
    # In a folder of its own, so that nothing is found there and everything is computed.
    with tempfile.TemporaryDirectory() as folder:
        app(["reproduce", *options, "--out", folder], standalone_mode=False)


def table1() -> None:
    reproduce("table1")


FLOWS: dict[str, Callable[[], None]] = {
    flow.__name__: flow for flow in (step, minimize, reproduce, table1)
}


def entered(flow: Callable[[], None]) -> list[str]:
    """The files whose functions the second of two runs calls, relative to their package."""
    seen = set[str]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        flow()
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            flow()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    folders = [
        Path(str(sys.modules[name].__file__)).parent for name in PACKAGES if name in sys.modules
    ]
    return sorted(
        str(Path(name).relative_to(folder.parent))
        for name in seen
        for folder in folders
        if Path(name).is_relative_to(folder)
    )


def use(sources: list[str]) -> None:
    """Import our packages from these folders. Finders of editable installations come before the
    path, so they go."""
    sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in f"{f!r} {type(f)}"]
    sys.path[:0] = sources
    sys.path_importer_cache.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description="List the files of ours that a flow enters.")
    parser.add_argument("flow", nargs="?", choices=FLOWS, help="unless named, all are counted")
    parser.add_argument("--source", action="append", default=[], help="folder with our packages")
    arguments = parser.parse_args()
    if arguments.source:
        use(arguments.source)
    for name in [arguments.flow] if arguments.flow else FLOWS:
        files = entered(FLOWS[name])
        of_study = sum(file.startswith("asgld_study") for file in files)
        print(f"{name}: {len(files)} files, {of_study} of them of the study")
        if arguments.flow:
            print(*(f"  {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main()
