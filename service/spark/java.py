"""The Java that Spark's scripts run, and its version."""

import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from service.errors import SetupError

VERSIONS = (17, 21)
"""What Spark 4.1 runs on. On a newer one its session does not start."""
_REMEDY = "Install a full JDK 17 or 21 and set JAVA_HOME"


def java() -> str:
    """Return the `java` that Spark's scripts run: JAVA_HOME's, else that of PATH. Raises SetupError when there is none."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None or not Path(program).exists():
        what = f"There is no Java{f' at {program}' if program else ' on the PATH, and JAVA_HOME is not set'}"
        raise SetupError(what, remedy=_REMEDY)
    return program


def version(program: str) -> int:
    """Return the feature version of a `java`, 0 if it does not say one.

    It is read from the file `release` of its JDK, which takes no start of a JVM; without the file the program is asked.
    """
    release = Path(program).resolve().parents[1] / "release"
    try:
        text = release.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    stated = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    if stated is None:
        with suppress(OSError, subprocess.SubprocessError):  # it may not be executed, or hangs
            asked = subprocess.run(  # noqa: S603 - the program that Spark's own scripts run
                [program, "-version"], capture_output=True, text=True, timeout=30, check=False
            )
            stated = re.search(r'version "(?:1\.)?(\d+)', asked.stderr)
    return int(stated[1]) if stated else 0


def supported() -> str:
    """Return the `java` that Spark's scripts run. Raises SetupError when there is none, or one on which Spark does not run."""
    program = java()
    number = version(program)
    if number not in VERSIONS:
        what = (
            f"{program} is Java {number or 'of an unknown version'}, Spark 4.1 needs {' or '.join(map(str, VERSIONS))}"
        )
        raise SetupError(what, remedy=_REMEDY)
    return program
