"""The jars that Tidemark adds to Spark: which they are, where they are, and the class path that they make.

    python -m service.spark.jars        # checks Java and prints the class path; the scripts in deploy/ call it

deploy/jars.lock names each jar with its checksum. There are these groups: `spark` for the service, `s3` for a checkpoint on S3,
`broker`, a Kafka broker for the demo and the tests. For the tests alone are `hdfs`, an HDFS, `former-broker`, an older Kafka,
`profiler`, and `flink` and `kafka-streams`, the peers that `make peers` compares with.
`tidemark jars` fetches them (service/spark/repository.py).
"""

import os
import re
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from service.errors import SetupError
from service.spark import java
from service.spark.home import installed
from service.spark.places import CHECKOUT, DEPLOY, cache
from service.version import version as tidemark_version

LOCK = DEPLOY / "jars.lock"
PYSPARK = "4.1.4"
"""The version that the tests run with, with Spark's modules of the lock; tests/unit/test_jars.py compares the pins with it.

PySpark before 4.1.4 leaves a socket of each task of the state operator open (SPARK-58932): the service ends within hours.
"""
GROUPS = ("spark", "broker")
MORE_GROUPS = ("s3", "hdfs")
"""Groups that only some need: a checkpoint on S3, and the plays of `make cluster`."""
FORMER_BROKER, PROFILER = "former-broker", "profiler"
"""Groups of `make faults ID=year`, which upgrades a broker, and of `make profile`."""
FLINK, KAFKA_STREAMS = "flink", "kafka-streams"
"""Groups of `make peers`."""

_VERSIONED = re.compile(r"-\d[\w.\-]*\.jar$")


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the lock: a group, Maven's `group:artifact:version`, and the SHA-256 of the file in hexadecimal digits."""

    group: str
    coordinates: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's name."""
        _, artifact, number = self.coordinates.split(":")
        return f"{artifact}-{number}.jar"

    @property
    def path(self) -> str:
        """The file's place in a Maven repository."""
        family, artifact, number = self.coordinates.split(":")
        return f"{family.replace('.', '/')}/{artifact}/{number}/{self.name}"


def locked(group: str, lock: Path = LOCK) -> list[Jar]:
    """Return the jars of a group, in the order of the lock."""
    lines = (line.split() for line in lock.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return [Jar(*words) for words in lines if words and words[0] == group]


def root() -> Path:
    """Return the folder with a folder of jars for each group: TIDEMARK_JARS, else `jars` in the cache.

    In the cache of a user, which several versions share, the folder has the version's name.
    """
    if given := os.environ.get("TIDEMARK_JARS"):
        return Path(given)
    return cache() / "jars" if CHECKOUT else cache() / "jars" / tidemark_version()


def folder(group: str = "spark") -> Path:
    """Return the folder of a group's jars."""
    return root() / group


def lacking(group: str, folder: Path) -> list[str]:
    """Return the names of the locked jars that the folder has in no version."""
    there = {_artifact(jar.name) for jar in folder.glob("*.jar")}
    return [jar.name for jar in locked(group) if _artifact(jar.name) not in there]


def other_versions(group: str, folder: Path) -> list[Path]:
    """Return the jars in the folder that are a locked jar in another version than the lock's."""
    wanted = locked(group)
    names = {jar.name for jar in wanted}
    artifacts = "|".join(re.escape(jar.coordinates.split(":")[1]) for jar in wanted)
    # Not of a jar with a classifier, such as `x-1.0-tests.jar`: it has other classes.
    versioned = re.compile(rf"({artifacts})-\d[\w.]*(-\d+)?\.jar")
    return sorted(each for each in folder.glob("*.jar") if each.name not in names and versioned.fullmatch(each.name))


def complete(group: str = "spark") -> list[Path]:
    """Return all jars in the folder of a group. Raises SetupError when the folder lacks some of the lock.

    More jars may be there, for example another database's driver, or another version of one.
    """
    place = folder(group)
    missing = lacking(group, place)
    if missing:
        none = len(missing) == len(locked(group))
        what = f"{place}: there are no jars" if none else f"{place} lacks {', '.join(missing)}"
        command = "tidemark jars" if group == "spark" else f"tidemark jars --group {group}"
        raise SetupError(what, remedy=f"Run `{command}`, or name the folder above it in TIDEMARK_JARS")
    return sorted(place.glob("*.jar"))


def require_tested() -> None:
    """Raise SetupError unless the installed PySpark and the folder's modules of Spark are those that the tests run with."""
    if (present := version("pyspark")) != PYSPARK:
        what = f"PySpark {present} is installed, and Tidemark {tidemark_version()} is tested with {PYSPARK} only"
        raise SetupError(
            what, remedy=f"Run `pip install pyspark=={PYSPARK}`, or install the Tidemark that is for {present}"
        )
    modules = {jar.name for jar in locked("spark") if jar.coordinates.startswith("org.apache.spark:")}
    for jar in other_versions("spark", folder()):
        if wanted := [name for name in modules if _artifact(name) == _artifact(jar.name)]:
            what = f"{jar} is a module of another Spark: PySpark {PYSPARK} is tested with {wanted[0]}"
            raise SetupError(what, remedy="Run `tidemark jars`, which replaces it")


def class_path() -> str:
    """Return Tidemark's jars as a class path, without the jars that Spark has too.

    Raises SetupError when jars are missing, or when PySpark or Spark's modules are in a version that is not tested.

    The jars for S3 are in it if `tidemark jars --group s3` has fetched them.

    The JVM searches the extra class path before Spark's own. An slf4j-api 1.7 there (a dependency of the Kafka connector) would
    hide Spark's 2.0 and silence all logging.
    """
    require_tested()
    shipped = {_artifact(jar.name) for jar in (installed() / "jars").glob("*.jar")}
    ours = [*complete(), *(complete("s3") if folder("s3").is_dir() else ())]
    return os.pathsep.join(str(jar) for jar in ours if _artifact(jar.name) not in shipped)


def _artifact(name: str) -> str:
    return _VERSIONED.sub("", name)


if __name__ == "__main__":
    try:
        java.supported()
        print(class_path())  # noqa: T201
    except SetupError as error:
        print(f"tidemark: {error.code}: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.status)
