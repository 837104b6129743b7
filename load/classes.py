"""Archives of the classes that Spark's driver and executors load, from which a JVM of a cluster starts sooner.

    python -m load.classes FOLDER       # make classes: driver.jsa and executor.jsa, which deploy/submit looks for

The service runs on a cluster of its own with readings of each kind, then both JVMs are asked for what they have loaded
(jcmd VM.cds dynamic_dump, JDK 17). An archive is good for this JDK and these jars at these paths; other JVMs ignore it.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from load.fleet import Fleet, FleetSettings
from load.generator import Generator
from load.parts import check_machine
from load.stage import TOPIC, VIEWS, Stage
from service import session
from service.errors import SetupError, TidemarkError

BATCHES = 10
WITHIN_S = 180.0
_SEED = 7


def archive(folder: Path, scratch: Path) -> list[Path]:
    """Make both archives in `folder`; everything else goes to `scratch`. Raises SetupError when a JVM does not."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {name: session.conf()[f"spark.{name}.extraJavaOptions"] for name in ("driver", "executor")}
    submit = [
        word
        for name, given in options.items()
        for word in ("--conf", f"spark.{name}.extraJavaOptions={given} -XX:+RecordDynamicDumpInfo")
    ]
    fleet = Fleet(_SEED, FleetSettings(devices=200, rate=200.0))
    with Stage(scratch, fleet, views=VIEWS, supervised=True, submit_options=submit) as stage:
        generator = Generator(stage.broker.bootstrap, TOPIC, fleet)
        stage.start_service()

        def enough() -> bool:
            generator.run(1.0)
            return int(stage.progress().get("batch", 0)) >= BATCHES

        stage.wait(enough, WITHIN_S, f"{BATCHES} batches")
        driver, executor = stage.cluster.driver_pids()[0], stage.cluster.executor_pids()[0]
        return [_dump(driver, folder / "driver.jsa"), _dump(executor, folder / "executor.jsa")]


def _dump(pid: int, file: Path) -> Path:
    file.unlink(missing_ok=True)
    jcmd = Path(session.java()).resolve().with_name("jcmd")
    command = [str(jcmd), str(pid), "VM.cds", "dynamic_dump", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    if done.returncode or not file.exists():
        what = f"{' '.join(command)} wrote no archive: {done.stdout}{done.stderr}"
        raise SetupError(what, remedy="It needs the jcmd of a full JDK 17, and the disk space")
    return file


def main() -> int:
    """0, or an error's own status."""
    try:
        folder = Path(sys.argv[1]).absolute()
        check_machine(folder=folder.parent)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            for file in archive(folder, Path(scratch) / "run"):
                print(f"{file}: {file.stat().st_size >> 20} MB")
    except TidemarkError as error:
        print(f"tidemark: {error.code}: {error}", file=sys.stderr)
        return error.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
