"""A mkdocs hook: the tables beside the benchmarks become pages of the site.

`benchmarks/tables/NAME.md` is shown as `appendix/NAME.md`. A page of docs/ says what the results
mean and links there; `nav` in mkdocs.yml gives the appendix its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_TABLES = Path(__file__).parent.parent / "benchmarks" / "tables"


def on_files(files: Files, *, config: Any) -> Files:
    """Add the appendices to the site."""
    for tables in sorted(_TABLES.glob("*.md")):
        address = f"appendix/{tables.name}"
        files.append(File.generated(config, address, abs_src_path=str(tables)))
    return files
