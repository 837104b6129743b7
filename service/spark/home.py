"""The SPARK_HOME of the service: links to the installed PySpark, without the files that make each start slower.

    python -m service.spark.home        # prints the folder; deploy/environment calls it

- spark-mllib: where its jar is on the class path, every session registers its functions first: 1.5 s of a core by Scala's
  reflection (Spark 4.1.1, SparkSession.loadExtensions; no setting turns it off). Tidemark does not use MLlib.
- python/lib/*.zip: Spark puts these archives first on the import path of every Python that it starts, although their modules are
  in site-packages, too. There is no bytecode in them: 0.8 s for the state operator's worker on the driver instead of 0.3, and
  half a second for the driver.

The installed PySpark is never changed.
"""

import hashlib
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from service.spark.places import cache

_LEFT_OUT = "spark-mllib_"
_FOLDERS = ("bin", "sbin")


def installed() -> Path:
    """Return the folder of the installed PySpark, without importing it."""
    spec = find_spec("pyspark")
    assert spec is not None, "pyspark is a dependency of this package"  # noqa: S101
    assert spec.origin is not None  # noqa: S101
    return Path(spec.origin).parent


def home() -> Path:
    """Return the folder for SPARK_HOME; the first call for a PySpark makes it.

    Its name depends on the jars, so a PySpark that changes gets a new folder. Where the cache cannot be written, the
    result is the installed PySpark, from which a start takes longer.
    """
    spark = installed()
    jars = sorted(jar for jar in (spark / "jars").glob("*.jar") if not jar.name.startswith(_LEFT_OUT))
    name = hashlib.sha256("\n".join(map(str, jars)).encode()).hexdigest()[:12]
    try:
        folder = cache().absolute() / "spark" / name
        if not os.access(folder / "jars", os.X_OK):
            _link(spark, jars, folder)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return spark
    return folder


def _link(spark: Path, jars: list[Path], folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        for name in _FOLDERS:
            (made / name).symlink_to(spark / name)
        (made / "jars").mkdir()
        for jar in jars:
            (made / "jars" / jar.name).symlink_to(jar)
        for each in (made, made / "jars"):
            each.chmod(0o755)  # links hold no secret, and another user of a checkout may run it
        try:
            made.rename(folder)
        except OSError:
            if not os.access(folder / "jars", os.X_OK):  # else another process was quicker
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    print(home())  # noqa: T201
