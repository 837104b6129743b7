"""Programs that are built once from their Go modules, of a fixed version whose checksum Go's database has."""

import os
import subprocess
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from service.errors import SetupError
from service.spark.places import cache


def built(module: str) -> Path:
    """Return the program of `PATH@VERSION`; builds it if it is not there. Raises SetupError without Go or the module."""
    path, _, version = module.partition("@")
    name = path.rpartition("/")[2]
    program = cache().absolute() / name / version / name
    return _made(program, ["install", module], Path.cwd())


def of_folder(folder: Path, package: str, name: str) -> Path:
    """Return the program of a package, in the version that a folder's go.mod has; builds it if it is not there.

    `go install` refuses a module that replaces others, as that of Kubernetes does. Raises SetupError as `built` does.
    """
    version = sha256((folder / "go.sum").read_bytes()).hexdigest()[:12]
    program = cache().absolute() / name / version / name
    return _made(program, ["build", "-o", str(program), package], folder)


def _made(program: Path, arguments: Sequence[str], folder: Path) -> Path:
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        environ = {**os.environ, "GOBIN": str(program.parent), "CGO_ENABLED": "0"}
        what = f"{arguments[-1]} cannot be built"
        try:
            done = subprocess.run(
                ["go", *arguments], cwd=folder, env=environ, check=False, capture_output=True, text=True, timeout=3_600
            )
        except OSError as error:
            raise SetupError(f"{what}: {error}", remedy="Install Go 1.26 or newer") from error
        if done.returncode:
            raise SetupError(f"{what}: {done.stderr[-1000:]}", remedy="It needs Go and its module proxy")
    return program
