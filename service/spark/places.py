"""Where the files of an installation are: in a checkout beside the sources, else in the package and the user's cache."""

import os
from pathlib import Path

from service.errors import SetupError

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
"""The scripts and settings files that operators use. A wheel has them as the package `deploy`."""
CHECKOUT = (ROOT / "pyproject.toml").exists()


def user_home() -> Path:
    """Return the user's home. Raises SetupError for a user of no account, as a container's may be, without HOME."""
    try:
        return Path.home()
    except RuntimeError as error:
        what = "The user has no home folder: HOME is not set, and the machine has no account of this user"
        raise SetupError(what, remedy="Set HOME to a folder that the user may write") from error


def cache() -> Path:
    """Return the folder for files that can be made again: TIDEMARK_CACHE, .build in a checkout, else ~/.cache/tidemark."""
    if given := os.environ.get("TIDEMARK_CACHE"):
        return Path(given)
    if CHECKOUT:
        return ROOT / ".build"
    return Path(os.environ.get("XDG_CACHE_HOME") or user_home() / ".cache") / "tidemark"
