"""A mkdocs hook: the playground becomes part of its page, which then needs no other file.

Browsers refuse to load modules from pages opened without a server, so the modules are joined into
one script in the page. They import by name from each other and have no top-level name in common.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent.parent / "docs" / "playground"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)
_PLACE = '<div id="pg-root"></div>'


def on_page_content(content: str, **_: Any) -> str:
    """Put markup, style and script where the page has the place for them."""
    if _PLACE not in content:
        return content
    style = (_FOLDER / "playground.css").read_text()
    markup = (_FOLDER / "page.html").read_text()
    script = f'<script type="module">\n{joined_modules()}</script>'
    return content.replace(_PLACE, f"<style>\n{style}</style>\n{markup}{script}")


def joined_modules(entry: str = "main.mjs") -> str:
    """The module and all it imports, each once and after what it imports itself."""
    parts: dict[str, str] = {}

    def visit(name: str) -> None:
        if name in parts:
            return
        source = (_FOLDER / name).read_text()
        for imported in _IMPORT.findall(source):
            visit(imported)
        parts[name] = re.sub(r"^export ", "", _IMPORT.sub("", source), flags=re.MULTILINE)

    visit(entry)
    return "\n".join(parts.values())
