"""A mkdocs hook: formulas become MathML at build time, so pages need no script and no network."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replace what arithmatex marked."""
    # A formula wider than the page scrolls by itself.
    content = _DISPLAY.sub(
        lambda m: f'<div style="overflow-x: auto">{_mathml(m[1], "block")}</div>', content
    )
    return _INLINE.sub(lambda m: _mathml(m[1], "inline"), content)


def _mathml(formula: str, display: str) -> str:
    return convert(html.unescape(formula.strip()), display=display)
