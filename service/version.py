"""The version of the installed distribution.

On PyPI the name `tidemark` belongs to another project. The distributions are tidemark-service, tidemark-client and
tidemark-dashboard; packages and the command keep their names.
"""

from functools import cache
from importlib import metadata

from service.errors import SetupError

DISTRIBUTION = "tidemark-service"


@cache
def version() -> str:
    """Return the version of this service. Raises SetupError without the distribution."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        what = f"The distribution {DISTRIBUTION} is not installed in this environment"
        remedy = (
            "Install the wheel. In a checkout run `make setup`, or `pip install --no-deps --no-build-isolation -e .`"
        )
        raise SetupError(what, remedy=remedy) from error
