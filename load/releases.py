"""The releases whose checkpoints this version must read, and the tree of each.

A release is its tag where the clone has tags, else its commit.
"""

import shutil
import subprocess
from pathlib import Path

RELEASES = {
    "0.4.0": "88e0949d171c03526c7f1fa31932d137de2deddc",
}
PREVIOUS = "0.4.0"

_ROOT = Path(__file__).resolve().parent.parent


def extract(version: str, folder: Path) -> Path:
    """Write the tree of a release, or of a revision of git, into a folder in place of what is there, and return the folder.

    CalledProcessError without its history.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ask = ["git", "rev-parse", "-q", "--verify", f"v{version}^{{commit}}"]
    tag = subprocess.run(ask, cwd=_ROOT, check=False, capture_output=True)
    name = f"v{version}" if tag.returncode == 0 else RELEASES.get(version, version)
    archive = subprocess.run(["git", "archive", name], cwd=_ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True, capture_output=True)
    return folder
