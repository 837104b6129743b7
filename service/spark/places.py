"""Where the files of an installation are: in a checkout beside the sources, else in the package and the user's cache."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
"""The scripts and settings files that operators use. A wheel has them as the package `deploy`."""
CHECKOUT = (ROOT / "pyproject.toml").exists()


def cache() -> Path:
    """Return the folder for files that can be made again: TIDEMARK_CACHE, .build in a checkout, else ~/.cache/tidemark."""
    if given := os.environ.get("TIDEMARK_CACHE"):
        return Path(given)
    if CHECKOUT:
        return ROOT / ".build"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidemark"
