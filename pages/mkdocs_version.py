"""A mkdocs hook: every page says which version of the package it describes.

Where the site is published with a folder per version, the variable ASGLD_DOCS_VERSIONS adds a menu
of the versions, which the theme reads from a file beside the folders. Elsewhere there is none.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

_PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def on_config(config: Any) -> Any:
    """Put the version in the foot of the pages, and the menu in their head."""
    version = tomllib.loads(_PROJECT.read_text())["project"]["version"]
    config.copyright = f"asgld {version}"
    if os.environ.get("ASGLD_DOCS_VERSIONS"):
        config.extra["version"] = {"provider": "mike"}
    return config
