"""Build the Spark session from deploy/spark-defaults.conf and the settings that depend on this machine.

Under spark-submit the JVM already runs with that file (`--properties-file`) and with the operator's options of the command line,
which take precedence. In plain Python and in tests this module starts the JVM, with the same file.
"""

import logging
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, ClassVar

from pyspark import SparkConf
from pyspark.sql import SparkSession

from service.errors import SettingsError, SetupError
from service.settings import Settings
from service.spark import files, java, jvm_errors
from service.spark.home import home
from service.spark.internals import jvm
from service.spark.jars import class_path, root
from service.spark.places import DEPLOY

_log = logging.getLogger(__name__)

DEFAULTS = DEPLOY / "spark-defaults.conf"

UNIX_SOCKETS = "spark.python.unix.domain.socket.enabled"
TASKS = "spark.tidemark.tasks"
"""Where the tasks of a driver on a standalone cluster run: `executors` (the default) or `driver`."""
_ENGINE = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
_SCHEDULER = "spark.scheduler.mode"
_POOL = "spark.tidemark.pool"
"""In a session of a pipeline among several: the pool of its jobs."""
_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
BRIEF_JAVA = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
"""Of a JVM that ends within seconds: no second compiler, no threads of a collector, and no verification of jars whose checksums
were compared when they were fetched."""
BRIEF_ARCHIVE = "brief.jsa"
"""Where `python -m load.classes` has made it: the classes that `tidemark check` loads. A start and a query of the reference take
4.5 s of CPU in the JVM with it and 7.5 without (JDK 17, Spark 4.1.4)."""
MOST_BUCKETS = 16
"""Of a checkpoint whose settings have no number: on more cores a batch gains less from another task than that costs."""
LONGEST_FOLDER = 106 - len("/.01234567-89ab-cdef-0123-456789abcdef.sock")
"""Bytes of a folder's path that leave room for the name of a socket in it; Java allows 106 for both (17.0.15), the system 107."""


def conf(path: Path = DEFAULTS) -> dict[str, str]:
    """Return the key-value pairs of a Spark properties file (`key value` lines, # comments), in the file's order."""
    pairs = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        key, _, value = line.strip().partition(" ")
        if key and not key.startswith("#"):
            pairs[key] = value.strip()
    return pairs


def submitted() -> bool:
    """Whether spark-submit started the JVM and this Python."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def unix_sockets(temporary: str) -> dict[str, str]:
    """Return Spark's setting that connects the JVM and Python's workers by Unix sockets; {}, which is TCP, for a long path.

    `temporary` is the JVM's folder for temporary files. One pair of runs on two cores: a steady batch with four buckets took
    857 ms over TCP and 682 ms over Unix sockets (Spark 4.1.1). The cause is not proven. Most likely small answers wait for
    acknowledgements in TCP.
    """
    return {UNIX_SOCKETS: "true"} if len(os.fsencode(temporary)) <= LONGEST_FOLDER else {}


def master_of(given: Mapping[str, str]) -> str:
    """Return the master of a driver's session: the submitted one, or with TASKS = driver a local one on the driver's cores.

    Raises SettingsError for any other value of TASKS.
    """
    tasks = given.get(TASKS, "executors")
    if tasks not in {"executors", "driver"}:
        what = f"{TASKS} = {tasks!r} is neither `executors` nor `driver`"
        raise SettingsError(what, remedy=f"Submit with --conf {TASKS}=driver, or without it")
    return f"local[{given.get('spark.driver.cores', '1')}]" if tasks == "driver" else given.get("spark.master", "")


def cores_asked(given: Callable[[str, str], str | None]) -> int:
    """Return `spark.cores.max`, the cores of all executors of a standalone cluster; 0 without it, or with another master.

    `given` is the `get` of Spark's settings.
    """
    return int(given("spark.cores.max", "") or 0) if (given("spark.master", "") or "").startswith("spark:") else 0


def cores_at_start(given: Callable[[str, str], str | None]) -> int:
    """Return the cores that a standalone cluster gives without a wait for load: all of `cores_asked`, or with dynamic allocation
    those of the first executors.

    `given` is the `get` of Spark's settings.
    """
    cores = cores_asked(given)
    if (given("spark.dynamicAllocation.enabled", "false") or "").lower() != "true":
        return cores
    counts = (
        "spark.dynamicAllocation.minExecutors",
        "spark.dynamicAllocation.initialExecutors",
        "spark.executor.instances",
    )
    first = max(int(given(name, "0") or 0) for name in counts)
    return min(cores, first * int(given("spark.executor.cores", "1") or 1))


def parallelism(given: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's setting for the number of tasks of a stage: a standalone cluster's cores come after the session exists.

    {} without `spark.cores.max`.
    """
    cores = cores_asked(given.get)
    return {"spark.default.parallelism": str(cores)} if cores else {}


def cluster_secret(given: Mapping[str, str]) -> dict[str, str]:
    """Return a random `spark.authenticate.secret`, which a driver of a standalone cluster needs to start and does not use.

    Spark takes the cluster's secret from the JVM's credentials or environment before it reads the settings, and never puts it
    into them (SecurityManager.initializeAuth and getSecretKey, Spark 4.1.1).
    """
    return {"spark.authenticate.secret": secrets.token_hex(32)} if given["spark.master"].startswith("spark:") else {}


def build(
    settings: Settings | None = None,
    *,
    master: str | None = None,
    app_name: str = "tidemark",
    is_shared: bool = False,
    is_brief: bool = False,
) -> SparkSession:
    """Return the session with Tidemark's settings. `settings` gives the application's name; `master` is local[*] by default.

    Starts a JVM unless spark-submit did. The number of shuffle partitions is the number of cores, at most `sessions.buckets`
    (MOST_BUCKETS without that), unless the operator sets it; a checkpoint keeps its first number. With `is_shared` several
    pipelines run in the application: their jobs get fair shares of the cores, and each takes a session from `of_pipeline`.
    `is_brief` is for a command that runs some seconds: its JVM has BRIEF_JAVA.
    Raises SetupError without jars or a suitable Java, or when no JVM starts.
    """
    use_this_python()
    name = settings.service.name if settings is not None else app_name
    builder = SparkSession.builder.appName(name)
    given: dict[str, str] = {}
    chosen: Mapping[str, str] = {}
    if submitted():
        packages = jvm.started()
        given = dict(SparkConf().getAll())
        given["spark.master"] = master_of(given)
        builder = builder.master(given["spark.master"])
        temporary = packages.java.lang.System.getProperty("java.io.tmpdir")
        chosen = {**unix_sockets(temporary), **parallelism(given), **cluster_secret(given)}
    else:
        os.environ.setdefault("LOG4J_CONFIGURATION_FILE", str(DEPLOY / "log4j2.properties"))
        master = master or "local[*]"
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # one process needs no address that others reach
        prepare()
        path = class_path()
        chosen = {"spark.driver.extraClassPath": path, "spark.executor.extraClassPath": path}
        if is_brief:
            chosen[_JAVA_OPTIONS] = brief(conf()[_JAVA_OPTIONS])
        builder = builder.master(master)
    if is_shared:
        chosen = {**chosen, _SCHEDULER: "FAIR"}
    wanted: dict[str, bool | float | int | str | None] = {
        k: v for k, v in {**conf(), **chosen}.items() if k not in given
    }
    try:
        if not submitted():
            texts = {name: str(value) for name, value in wanted.items()}
            jvm.launch({**texts, "spark.master": master or ""}, jvm_errors.pipe())
        spark = builder.config(map=wanted).getOrCreate()
    except Exception as error:
        what = f"Spark does not start: {next(iter(str(error).splitlines()), type(error).__name__)}"
        raise SetupError(
            what, remedy="It needs a JDK 17 or 21 (JAVA_HOME or PATH) and its standard error says more"
        ) from error
    warn_of_noexec(jvm.of(spark).java.lang.System.getProperty("java.io.tmpdir"))
    _suit(spark, settings, {**given, **wanted})
    return spark


def brief(java_options: str) -> str:
    """Return the options of a JVM with those of BRIEF_JAVA, and with the archive of its classes if there is one.

    Java checks that the archive is of this JDK and of the jars as they are, and goes on without another one.
    """
    kept = [each for each in java_options.split(" ") if not re.match(r"-XX:\+Use\w+GC$|-Xmn", each)]
    archive = root() / "classes" / BRIEF_ARCHIVE
    archived = [f'"-XX:SharedArchiveFile={archive}"', "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return " ".join([*kept, *BRIEF_JAVA, *(archived if archive.is_file() else ())])


def warn_of_noexec(folder: str) -> None:
    """Warn if no library can be loaded from Java's temporary folder: Spark's error would name a method of RocksDB or Snappy."""
    if Path(folder).is_dir() and os.statvfs(folder).f_flag & os.ST_NOEXEC:
        text = "%s is mounted with noexec, and Spark loads RocksDB, Snappy and Zstandard from there. Mount it with exec, or %s"
        _log.warning(text, folder, "start with SPARK_SUBMIT_OPTS=-Djava.io.tmpdir=FOLDER")


def of_pipeline(spark: SparkSession, settings: Settings) -> SparkSession:
    """Return a session of its own for one of several pipelines of an application: its settings of SQL are its own.

    Spark gives each pool the same share of the cores, whatever waits in the others.
    """
    own: SparkSession = spark.newSession()
    own.conf.set(_POOL, settings.service.name)
    return own


def begin(spark: SparkSession, settings: Settings) -> None:
    """Prepare a session of `of_pipeline` for a run: set what depends on the settings, and have this thread join its pool."""
    _suit(spark, settings, jvm.settings(spark))
    join_pool(spark)


def join_pool(spark: SparkSession) -> None:
    """Have the Spark jobs of the calling thread run in the pool of the session's pipeline, if the session has one."""
    pool = spark.conf.get(_POOL, "")
    if pool:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)


def _suit(spark: SparkSession, settings: Settings | None, given: Mapping[str, object]) -> None:
    """Set what depends on the settings of a pipeline in its session, unless it is `given`."""
    if "spark.sql.shuffle.partitions" not in given:
        # A task costs the same however small its work is, so a partition without a bucket would only cost.
        buckets = (settings.sessions.buckets or MOST_BUCKETS) if settings is not None else 1
        spark.conf.set("spark.sql.shuffle.partitions", str(min(spark.sparkContext.defaultParallelism, buckets)))
    by_store = files.manager(settings.service.checkpoint) if settings is not None else ""
    if by_store and given.get(files.MANAGER) == conf()[files.MANAGER]:
        spark.conf.set(files.MANAGER, by_store)


def use_this_python(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make Spark's workers run this interpreter: they use the value that PYSPARK_PYTHON has when the session is built.

    Without it they run PATH's python3, which may be another one (Spark 4.1.1).
    """
    environment["PYSPARK_PYTHON"] = sys.executable


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what the JVM that pyspark starts, and its Python workers, inherit. Raises SetupError without a suitable Java.

    PYTHONSAFEPATH: a worker starts in the current folder, which would be first on its import path. A folder `state` there would
    hide the package.
    """
    java.supported()
    environment.update(SPARK_HOME=str(home()), PYTHONSAFEPATH="1")


def on_jvm_signals(call: Callable[[], None], *names: str) -> None:
    """Call `call` when the JVM gets one of the signals `names`, for example TERM; the JVM then does not end by itself.

    The process of spark-submit is the JVM, so supervisors signal the JVM, and Spark never passes a signal to Python. `call` runs
    in a thread of py4j's callback server and must return at once. Needs the JVM, but no session.
    """
    signals = jvm.with_callbacks().sun.misc
    for name in names:
        signals.Signal.handle(signals.Signal(name), _Handler(call))


def silence(spark: SparkSession, *, silent: bool = True) -> None:
    """Turn off the JVM's logger of queries, which logs each requested end as an error, or let it log errors again."""
    log4j = jvm.of(spark).org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(_ENGINE, log4j.Level.OFF if silent else log4j.Level.ERROR)


class _Handler:
    """A sun.misc.SignalHandler that py4j calls."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def handle(self, _signal: Any) -> None:
        self._call()

    class Java:
        implements: ClassVar = ["sun.misc.SignalHandler"]
