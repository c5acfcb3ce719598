"""A mkdocs hook: pages of the site whose files lie elsewhere in the repository.

`benchmarks/tables/NAME.md` is shown as `appendix/NAME.md`: a page of docs/ says what the results
mean and links there. CHANGELOG.md and CONTRIBUTING.md are pages too; their links begin at the root
of the repository, so that they also work where the files lie. `nav` in mkdocs.yml gives each its
place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parent.parent
_OF_THE_ROOT = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages to the site."""
    for tables in sorted((_ROOT / "benchmarks" / "tables").glob("*.md")):
        address = f"appendix/{tables.name}"
        files.append(File.generated(config, address, abs_src_path=str(tables)))
    for address, name in _OF_THE_ROOT.items():
        files.append(File.generated(config, address, abs_src_path=str(_ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Let the links of the files of the root begin at docs/, as those of the other pages do."""
    if page.file.src_uri in _OF_THE_ROOT:
        return markdown.replace("](docs/", "](")
    return markdown
