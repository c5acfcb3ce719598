"""The rooms of the tree, what they import, and their picture: docs/architecture.md.

Both are read from the source with `ast`, so the page cannot differ from the imports.
tests/asgld/test_architecture.py says which imports are allowed.
"""

from __future__ import annotations

import ast
from functools import cache
from html import escape
from pathlib import Path

from pages.results import ROOT, Values, table

LIBRARY, STUDY = ROOT / "src" / "asgld", ROOT / "study" / "asgld_study"
# What a run passes through, from the function to the page, and the folder or file of each.
FLOW = {
    "problem": ("what f is, what is known", "src/asgld/problems"),
    "oracle": ("the only door to f", "src/asgld/oracle"),
    "method": ("one update rule", "src/asgld/methods"),
    "run": ("the only loop", "src/asgld/run"),
    "diagnostics": ("a run against theory", "src/asgld/diagnostics"),
    "report": ("tables, figures, a page", "study/asgld_study"),
}
WIDTH, BOX, HEIGHT, GAP, TOP = 1000, 112, 34, 44, 163


def values() -> Values:
    rows: dict[Path, list[list[str]]] = {}
    for package in (LIBRARY, STUDY):
        imports = imports_of(package)
        rows[package] = [
            [f"`{_path(package, room)}`", _says(package, room),
             ", ".join(f"`{name}`" for name in sorted(imports[room])) or "none"]
            for room in _in_order(imports)
        ]  # fmt: skip
    tables = {
        # The picture shows these imports.
        "architecture.library": table(["room", "what it is"], [row[:2] for row in rows[LIBRARY]]),
        "architecture.study": table(["room", "what it is", "imports"], rows[STUDY]),
    }
    return Values({}, tables)


def imports_of(package: Path) -> dict[str, set[str]]:
    """The rooms of a package, each a folder or a module, and the rooms that each imports."""
    rooms = {path.relative_to(package).with_suffix("").parts[0] for path in package.rglob("*.py")}
    rooms -= {"__init__", "__main__"}
    return {
        room: (_imported(package / room, package) | _imported(package / f"{room}.py", package))
        - {room}
        for room in rooms
    }


@cache
def _imported(place: Path, package: Path) -> set[str]:
    """The rooms of a package that a module, or any module of a folder, imports."""
    names = set[str]()
    for path in [place] if place.is_file() else place.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
    rooms = {name.split(".")[1] for name in names if name.startswith(f"{package.name}.")}
    return {
        room for room in rooms if (package / room).is_dir() or (package / f"{room}.py").is_file()
    }


def _path(package: Path, room: str) -> str:
    return f"{room}/" if (package / room).is_dir() else f"{room}.py"


def _says(package: Path, room: str) -> str:
    """The first sentence of a room's docstring."""
    path = package / room / "__init__.py" if (package / room).is_dir() else package / f"{room}.py"
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def _level(imports: dict[str, set[str]], room: str) -> int:
    return 1 + max((_level(imports, name) for name in imports[room]), default=-1)


def _in_order(imports: dict[str, set[str]]) -> list[str]:
    """A room stands after all that it imports."""
    return sorted(imports, key=lambda room: (_level(imports, room), room))


def _drawn(imports: dict[str, set[str]], room: str) -> set[str]:
    """The imports of a room without those that another import leads to as well."""

    def reach(name: str) -> set[str]:
        return imports[name].union(*map(reach, imports[name]))

    return imports[room] - set().union(*map(reach, imports[room]))


def _places(imports: dict[str, set[str]]) -> dict[str, tuple[float, float]]:
    """Where the box of each room stands: above all that it imports, near what it is tied to."""
    levels: dict[int, list[str]] = {}
    for room in _in_order(imports):
        levels.setdefault(_level(imports, room), []).append(room)
    x = dict.fromkeys(imports, WIDTH / 2)
    # Up and down again, so that each level is ordered by the levels below and above it.
    for level in [*sorted(levels), *sorted(levels, reverse=True), *sorted(levels)]:
        rooms = levels[level]
        ties = {
            room: [x[name] for name in imports if name in _drawn(imports, room)]
            + [x[name] for name in imports if room in _drawn(imports, name)]
            for room in rooms
        }
        rooms.sort(key=lambda room: sum(ties[room]) / max(1, len(ties[room])))
        shift = 100 if level % 2 else 20  # so that lines pass beside boxes
        x |= {r: (i + 0.5) * (WIDTH - 120) / len(rooms) + shift for i, r in enumerate(rooms)}
    top = max(levels)
    return {
        room: (x[room], TOP + (top - level) * (HEIGHT + GAP))
        for level, rooms in levels.items()
        for room in rooms
    }


def picture() -> str:
    """The flow of a run, and below it the rooms of the library, each above what it imports."""
    imports = {**imports_of(LIBRARY), "study": _imported(STUDY, LIBRARY)}
    place, parts = _places(imports), list[str]()
    for room, (x, y) in place.items():
        for name in sorted(_drawn(imports, room)):
            to_x, to_y = place[name]
            parts.append(_line(x, y + HEIGHT, to_x, to_y, "gray"))
    for room, (x, y) in place.items():
        is_study = room == "study"
        name = "study/" if is_study else _path(LIBRARY, room)
        parts.append(_box(x, y, name, "#e9f5e4" if is_study else "#e8f1fa"))
    step = WIDTH / len(FLOW)
    for i, (name, (says, folder)) in enumerate(FLOW.items()):
        x = (i + 0.5) * step
        if i:
            parts.append(_line(x - step + BOX / 2, 59, x - BOX / 2, 59, "#d94801"))
        parts += [_box(x, 42, name, "#fdebdd"), _text(x, 94, says, 11), _text(x, 109, folder, 11)]
    parts += [
        _text(12, 26, "A run: what the data passes through", 13, "start"),
        _text(12, 145, "The rooms: a line leads down to a room that is imported", 13, "start"),
    ]
    height = max(y for _, y in place.values()) + HEIGHT + 20
    markers = "".join(
        f'<marker id="{color.strip("#")}" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" '
        f'markerHeight="6" orient="auto"><path d="M0 0L6 3L0 6z" fill="{color}"/></marker>'
        for color in ("gray", "#d94801")
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" role="img">\n<title>How the rooms of the tree fit</title>\n'
        f'<defs>{markers}</defs>\n<rect width="{WIDTH}" height="{height}" rx="8" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return (
        f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="{color}" '
        f'stroke-width="1.5" marker-end="url(#{color.strip("#")})"/>'
    )


def _box(x: float, y: float, name: str, fill: str) -> str:
    return (
        f'<rect x="{x - BOX / 2:.0f}" y="{y:.0f}" width="{BOX}" height="{HEIGHT}" rx="5" '
        f'fill="{fill}" stroke="#52606d"/>' + _text(x, y + 22, name, 13)
    )


def _text(x: float, y: float, text: str, size: int, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="#1f2933">{escape(text)}</text>'
    )
