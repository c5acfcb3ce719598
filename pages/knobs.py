"""The knobs of the optimizers: docs/knobs.md, from their declarations in asgld.optim.rule."""

from __future__ import annotations

from asgld.optim.rule import KNOBS, Rule
from pages.results import Values, table


def values() -> Values:
    defaults = Rule._field_defaults
    rows = [
        [f"`{name}`", f"`{defaults[name]!r}`", _allowed(name), _meaning(knob.meaning)]
        for name, knob in KNOBS.items()
    ]
    return Values({}, {"knobs.all": table(["knob", "default", "allowed", "meaning"], rows)})


def _meaning(text: str) -> str:
    """The first sentence; the reference has the others."""
    return text.split(". ")[0].replace("|", "\\|")


def _allowed(name: str) -> str:
    """The range of a number, or the words that are allowed."""
    need = KNOBS[name].need(name).removeprefix("need ").split("; ")[0].replace("|", "\\|")
    short = (
        need.replace("<=", "≤").replace(">=", "≥").replace("infinity", "∞").replace(" ", "\u00a0")
    )
    return f"{short}, or None" if KNOBS[name].optional and "None" not in need else short
