"""What the pages show is run: every python block of README and docs, and the claims around them."""

from __future__ import annotations

import csv
import re
import sys
import types
from helpers import ROOT
from pathlib import Path

import pytest

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The tutorials are run by tests/site/test_tutorials.py, which also compares what they print.
RUN_HERE = [page for page in PAGES if page.parent.name != "tutorials"]


def _blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda p: p.name)
def test_code_on_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # A real module, since dataclasses look theirs up.
    module = types.ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in _blocks(page):
        exec(compile(block, str(page), "exec", dont_inherit=True), module.__dict__)


def test_readme_examples_do_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    for example in _blocks(ROOT / "README.md"):
        exec(compile(example, "README.md", "exec", dont_inherit=True), {})
    output = capsys.readouterr().out
    assert re.search(r"MINIMUM .*\nSTRICT_SADDLE", output)
    printed = re.search(r"loss ([\d.]+)", output)
    assert printed is not None
    # targets have variance near 0.5
    assert float(printed[1]) < 0.1


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


# ----------------------------------------------------------------------------------------------
# Numbers of the pages, against the files that their commands wrote
# ----------------------------------------------------------------------------------------------

GPU_ROWS = {
    "ASGLD, alpha = beta = 1": "ASGLD",
    "ASGLD, general powers": "ASGLD, general powers",
    "ASG (no noise)": "ASG",
    "ASGLD with decay, momentum, clip": "ASGLD, decay, momentum, clip",
    "ASGLD, capturable": "ASGLD, capturable",
    "ASGLD, replay of a CUDA graph": "ASGLD, graph replay",
    "ASGLD on a mesh of one rank": "ASGLD, sharded on one rank",
}
CPU_ROWS = {
    "ASGLD, kernel, alpha = beta = 1": "ASGLD fused",
    "ASGLD, kernel, general powers": "ASGLD fused, general powers",
    "ASGLD, kernel, decay, momentum, clip": "ASGLD fused, decay, momentum, clip",
    "ASG, kernel (no noise)": "ASG fused",
    "Adagrad, fused, torch": "Adagrad fused",
    "SGLD of torch-sgld": "torch-sgld SGLD",
    "SGLD of posteriors, gradient included": "posteriors SGLD (with gradient)",
    "ASGLD without the kernel, on lists": "ASGLD foreach",
}


def _results(name: str) -> list[dict[str, str]]:
    with (ROOT / "benchmarks" / "results" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _ratios(name: str) -> dict[tuple[str, str], float]:
    return {
        (row["workload"], row["contender"]): float(row["ratio_to_adamw_fused"])
        for row in _results(name)
    }


def _table(page: str, start: str) -> dict[str, list[str]]:
    """Cells by the first one of their row, of the table whose header begins like this."""
    text = (ROOT / page).read_text()
    _, _, *lines = text[text.index(start) :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: cells for first, *cells in rows}


def _assert_shown(cell: str, value: float) -> None:
    digits = len(cell.partition(".")[2])
    assert cell == f"{value:.{digits}f}"


@pytest.mark.parametrize(
    ("file", "rows", "start", "workloads"),
    [
        ("step_time_gpu", GPU_ROWS, "| step, noise on unless said | 2^20",
         ("2^20", "2^25", "2^28", "2^30", "ResNet-50 list", "GPT list")),
        ("step_time_cpu", CPU_ROWS, "| step, noise on unless said | 10,000",
         ("1e4", "1e6", "1e7", "ResNet-50 list")),
    ],
)  # fmt: skip
def test_speed_page_shows_the_committed_ratios(
    file: str, rows: dict[str, str], start: str, workloads: tuple[str, ...]
) -> None:
    table, ratios = _table("docs/speed.md", start), _ratios(file)
    assert set(table) == set(rows)
    for title, cells in table.items():
        for workload, cell in zip(workloads, cells, strict=True):
            if cell or (workload, rows[title]) in ratios:
                _assert_shown(cell, ratios[workload, rows[title]])


def test_readme_shows_the_committed_ratios() -> None:
    gpu, cpu = _ratios("step_time_gpu"), _ratios("step_time_cpu")
    of_gpu, *of_cpu = _table("README.md", "| | ASGLD | the same with momentum").values()
    _assert_shown(of_gpu[0], gpu["GPT list", "ASGLD"])
    _assert_shown(of_gpu[1], gpu["GPT list", "ASGLD, decay, momentum, clip"])
    names = ("ASGLD fused", "ASGLD fused, decay, momentum, clip", "ASGLD foreach")
    for workload, cells in zip(("1e7", "1e6"), of_cpu, strict=True):
        for name, cell in zip(names, cells, strict=True):
            _assert_shown(cell, cpu[workload, name])


def test_speed_page_shows_the_committed_chains() -> None:
    rows = {r["contender"]: r for r in _results("chains") if r["replicas"] == "1000"}
    table = _table("docs/speed.md", "| | seconds | one chain after another takes")
    for name, cells in zip(("run", "optimizer", "jax vmap"), table.values(), strict=True):
        _assert_shown(cells[0], float(rows[name]["median_s"]))
        times = cells[1].removesuffix(" times as long").replace(",", "")
        _assert_shown(times, float(rows[name]["one_by_one_over_this"]))


def test_install_page_shows_the_committed_import() -> None:
    table = _table("docs/install.md", "| | processor time, median")
    for row in _results("import_time"):
        seconds, ratio, modules, memory = table[f"`import {row['import']}`"]
        _assert_shown(seconds.removesuffix(" s"), float(row["median_us"]) / 1e6)
        _assert_shown(ratio, float(row["ratio_to_torch"]))
        assert (modules, memory) == (row["modules"], f"{row['memory_mb']} MB")
