"""Servers that Python packages bring: where their programs are."""

import importlib.util
from pathlib import Path

from service.errors import SetupError


def package_folder(name: str, what: str) -> Path:
    """Where an installed package is, without importing it: both packages of servers do work when imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        lack = f"No {what} on this machine"
        raise SetupError(lack, remedy=f"Install it, or `pip install {name}`.")
    return Path(spec.submodule_search_locations[0])
