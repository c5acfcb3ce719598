"""The pages of `asgld table1`, from the files of its last full run in benchmarks/results/table1."""

from __future__ import annotations

from pathlib import Path

from asgld_study.paper.table1_page import committed_pages
from pages.results import RESULTS, ROOT


def files() -> dict[Path, str]:
    """Whole files, which have no marks."""
    summary, appendix = committed_pages(RESULTS / "table1")
    return {
        ROOT / "docs" / "table1.md": summary,
        ROOT / "benchmarks" / "tables" / "table1.md": appendix,
    }
