"""The releases whose checkpoints this version must read or refuse by name, and the tree of each.

A release is its tag where the clone has tags, else its commit.
"""

import shutil
import subprocess
from pathlib import Path

RELEASES = {
    "0.1.0": "f39278ff0429bd97049845b7862abd137cf2adda",
    "0.2.0": "878e46cdd7c11a96330b062f354ff9047420c7ea",
    "0.3.0": "a31879131204e7e57399fef59e088938d35004c1",
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
    # A release asks for the version of its distribution, whose name was `tidemark`; this environment has tidemark-service.
    info = folder / "tidemark.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tidemark\nVersion: {version}\n", encoding="utf-8")
    return folder
