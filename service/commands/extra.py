"""Find the packages that are installed by extras of the service: tidemark-dashboard and tidemark-sql."""

import importlib
from typing import Any

from service.errors import SetupError


def command(extra: str) -> Any:
    """Return the module `command` of an extra's package. Raises SetupError if it, or what it needs, is not installed."""
    try:
        return importlib.import_module(f"tidemark_{extra}.command")
    except ModuleNotFoundError as error:
        what = f"This command needs the package {error.name}, which is not installed"
        raise SetupError(what, remedy=f"Install Tidemark's wheel with its extra: tidemark-service[{extra}]") from error
