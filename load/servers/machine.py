"""The machine that parts run on: its Java, the jars, and what it lacks for them."""

import os
import shutil
import subprocess
from pathlib import Path

from service.errors import SetupError

ROOT = Path(__file__).resolve().parents[2]
_FREE_BYTES = 2 << 30


def jars(which: str) -> Path:
    """The folder of jars `which` ("broker" or "spark"): in TIDEMARK_JARS, else in the repository's .build/jars."""
    return Path(os.environ.get("TIDEMARK_JARS") or ROOT / ".build" / "jars") / which


def java() -> str:
    """The `java` to run: JAVA_HOME's, else the one on PATH. Raises SetupError when there is none."""
    home = os.environ.get("JAVA_HOME")
    executable = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if executable is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        what = f"No java {where}"
        raise SetupError(what, remedy="Install a JDK 17 or point JAVA_HOME at one.")
    return executable


def check_machine(folder: Path = ROOT) -> None:
    """Raise one SetupError naming everything this machine lacks for the parts and Spark; `folder` needs disk space."""
    problems: list[str] = []
    try:
        output = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False).stderr
        version = output.split('"')[1].split(".")[0] if '"' in output else "unknown"
        if version not in {"17", "21"}:
            problems.append(f"Java is {version}, Spark 4.1 runs on 17 and 21: point JAVA_HOME at a JDK 17")
        modules = subprocess.run([java(), "--list-modules"], capture_output=True, text=True, check=False).stdout
        if "jdk.incubator.vector" not in modules:
            problems.append("Java lacks the module jdk.incubator.vector: install a full JDK 17, not a cut-down one")
    except SetupError as problem:
        problems.append(f"{problem.what}: {problem.remedy[:-1]}")
    missing = [str(jars(which)) for which in ("spark", "broker") if not any(jars(which).glob("*.jar"))]
    if missing:
        maven = "run `make setup`" if shutil.which("mvn") else "install Maven and run `make setup`"
        problems.append(f"No jars in {', '.join(missing)}: {maven}")
    free = shutil.disk_usage(folder).free
    if free < _FREE_BYTES:
        problems.append(f"{free >> 20} MiB free in {folder}, {_FREE_BYTES >> 20} are needed: make room")
    if problems:
        raise SetupError("This machine is not ready: " + "; ".join(problems))
