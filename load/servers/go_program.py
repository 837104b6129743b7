"""Programs that are built once from their Go modules, of a fixed version whose checksum Go's database has."""

import os
import subprocess
from pathlib import Path

from service.errors import SetupError
from service.spark.places import cache


def built(module: str) -> Path:
    """Return the program of `PATH@VERSION`; builds it if it is not there. Raises SetupError without Go or the module."""
    path, _, version = module.partition("@")
    name = path.rpartition("/")[2]
    program = cache().absolute() / name / version / name
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        environ = {**os.environ, "GOBIN": str(program.parent), "CGO_ENABLED": "0"}
        try:
            done = subprocess.run(
                ["go", "install", module], env=environ, check=False, capture_output=True, text=True, timeout=1_800
            )
        except OSError as error:
            raise SetupError(f"{module} cannot be built: {error}", remedy="Install Go 1.24 or newer") from error
        if done.returncode:
            what = f"{module} cannot be built: {done.stderr[-1000:]}"
            raise SetupError(what, remedy="It needs Go and its module proxy")
    return program
