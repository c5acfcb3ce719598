"""Settings that every test shares."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from filelock import FileLock

from asgld.optim import _native

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

# So that what fails in a shared check shows its values.
pytest.register_assert_rewrite("helpers", "method_cases")

# Two workers share two cores; a test that is about threads sets their number itself.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start

if not torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
    # Without a GPU kernels run in Triton's interpreter. Triton's own functions are bound to it when
    # Triton is first imported, and some module of torch would do that.
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.language  # noqa: F401

    del os.environ["TRITON_INTERPRET"]


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


@pytest.fixture
def best_build() -> Iterator[None]:
    """What a test of the C kernel may change, its build and the number of threads, as before."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    _native.set_build(None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium without a window: the system's, or the one that $CHROMIUM names."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if name and (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium here; install it or set CHROMIUM")
    with playwright.sync_playwright() as engine:
        # Chromium's sandbox needs rights that containers lack; the pages are our own.
        chromium = engine.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def browser_page(browser: Browser) -> Iterator[Page]:
    """A fresh page that fails the test if it reports an error or asks for what is not there."""
    page = browser.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("requestfailed", lambda request: complaints.extend(_failure(request)))
    yield page
    page.close()
    assert not complaints


@pytest.fixture(scope="session")
def run_once(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, Callable[[Path], None]], Path]:
    """Return a function that runs another in a folder, once for all test processes together."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base

    def run(name: str, fill: Callable[[Path], None]) -> Path:
        folder, is_done = shared / name, shared / f"{name}.done"
        with FileLock(f"{folder}.lock"):
            if not is_done.exists():
                if folder.exists():
                    pytest.fail(f"{name} has failed before, in the first test that needed it")
                folder.mkdir()
                fill(folder)
                is_done.touch()
        return folder

    return run


def _failure(request: Request) -> list[str]:
    """What was asked for in vain; a page that is left gives up its requests, which is no fault."""
    is_given_up = request.failure == "net::ERR_ABORTED"
    return [] if is_given_up else [f"{request.failure}: {request.url}"]
