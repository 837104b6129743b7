"""The command line: `tidemark COMMAND`; `tidemark --help` lists the commands.

The exit status is 0, or that of the error's family in service/errors.py, and 2 for a wrong command line.
"""

import argparse
import faulthandler
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from service import settings
from service.commands import rejects as reject_commands
from service.errors import CheckpointError, TidemarkError
from service.printing import document, printable, say

if TYPE_CHECKING:
    from service.commands.finding import Line

TRACE = "TIDEMARK_TRACE"
"""What deploy/log4j2.properties prints of exceptions in the JVM: "none" or "full"."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. An error is one line on standard error; --debug adds a traceback."""
    arguments = _parser().parse_args(words)
    _log(arguments.debug)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except TidemarkError as error:
        if arguments.debug:
            logging.getLogger(__name__).exception("ended by")
        for line in f"tidemark: {error.code}: {error}".splitlines():
            print(printable(line), file=sys.stderr, flush=True)
        return error.status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # what reads the output, such as `head`, has read enough
        return 141


def daemon() -> None:
    """The entry for spark-submit: `deploy/daemon.py --config F` is `tidemark run --config F` in spark-submit's JVM."""
    _leave(main(["run", *sys.argv[1:]]))


def program() -> None:
    """The entry for a shell: `tidemark`, and `python -m service.cli`."""
    _leave(main())


def _leave(status: int) -> NoReturn:
    """End the process with this status, without finalizing the interpreter.

    Finalizing aborts while a native thread of a client or of Spark still returns: one in six runs that ended 10 s after
    their start died of SIGABRT (Python 3.11, "PyGILState_Release: thread state must be current when releasing").
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):
            stream.flush()
    os._exit(status)


def _run(arguments: argparse.Namespace) -> int:
    from service.daemon import runner  # noqa: PLC0415 - Spark takes a second to import, `tidemark version` should not wait

    os.umask(0o077)  # the JVM inherits it; under spark-submit the scripts set it before the JVM starts
    faulthandler.enable()  # prints a traceback when a native client, of Kafka, Arrow or Redis, crashes
    return runner.run(settings.load(arguments.config), master=arguments.master)


def _check(arguments: argparse.Namespace) -> int:
    from service.commands import check  # noqa: PLC0415

    return _report(check.check_file(arguments.config))


def _say_all(lines: "Iterable[object]") -> None:
    """Print these, of which each may have several lines."""
    for line in lines:
        for text in str(line).splitlines():
            say(text)


def _report(lines: "Sequence[Line]") -> int:
    """Print the findings of a command; the exit status is that of the first failure, 0 without one."""
    _say_all(lines)
    return next((line.exit_status for line in lines if line.status == "fail"), 0)


def _status(arguments: argparse.Namespace) -> int:
    """Return 0 when the query runs, 1 when it does not or no service answers."""
    from service.monitoring import status  # noqa: PLC0415

    metrics = settings.load(arguments.config).metrics
    reply = status.ask(metrics)
    if reply is None:
        print(f"tidemark: no service answers at {status.address(metrics)}", file=sys.stderr)
        return 1
    _say_all([document(reply)] if arguments.json else status.table(reply, arguments.batches))
    return 0 if reply["state"] == "running" else 1


def _checkpoint(arguments: argparse.Namespace) -> int:
    from service.checkpoint import resume  # noqa: PLC0415
    from service.commands import verify  # noqa: PLC0415
    from service.spark import session  # noqa: PLC0415

    loaded = settings.load(arguments.config)
    spark = session.build(loaded, master="local[*]")
    try:
        if arguments.action == "verify":
            report = verify.verify(spark, loaded)
            for line in report.lines():
                say(line)
            return CheckpointError.status if report.damage else 0
        is_init = arguments.action == "init"
        manifest = resume.init(spark, loaded, dry=arguments.dry_run) if is_init else resume.show(spark, loaded)
        for line in manifest.encode().decode().splitlines():
            say(line)
        return 0
    finally:
        spark.stop()


def _republish(arguments: argparse.Namespace) -> int:
    from service.commands import republish as republish_command  # noqa: PLC0415

    republish_command.by_hand(settings.load(arguments.config), say=say, dry=arguments.dry_run)
    return 0


def _skip(arguments: argparse.Namespace) -> int:
    from service.commands import skip as skip_command  # noqa: PLC0415

    skip_command.skip(settings.load(arguments.config), arguments.offsets, say, dry=arguments.dry_run)
    return 0


def _correct(arguments: argparse.Namespace) -> int:
    from service.recompute import correct  # noqa: PLC0415

    since_ms, until_ms = reject_commands.span(arguments)
    correct.correct(
        settings.load(arguments.config), since_ms, until_ms, say=say, again=arguments.again, dry=arguments.dry_run
    )
    return 0


def _profile(arguments: argparse.Namespace) -> int:
    from service.quality import profile  # noqa: PLC0415

    loaded = settings.load(arguments.config)
    out = arguments.out or loaded.quality.expectations or profile.DEFAULT
    profile.profile(loaded, out, arguments.readings, say, replace=arguments.replace)
    return 0


def _devices(arguments: argparse.Namespace) -> int:
    from service.commands import devices  # noqa: PLC0415

    skewed = devices.skewed(settings.load(arguments.config).redis)
    for line in [document(skewed)] if arguments.json else devices.table(skewed):
        say(line)
    return 0


def _schemas(arguments: argparse.Namespace) -> int:
    from service.commands import compatibility  # noqa: PLC0415

    return _report(compatibility.check(settings.load(arguments.config), arguments.files))


def _version(_: argparse.Namespace) -> int:
    say(f"tidemark {version('tidemark')} (Spark {version('pyspark')}, Python {sys.version.split()[0]})")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidemark", description="Device telemetry on Kafka, as live numbers in Redis."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name: str, text: str, command: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=text, description=text)
        parser.add_argument("--debug", action="store_true", help="log more, and the traceback of the error")
        parser.set_defaults(command=command)
        return parser

    run = add("run", "Run the service until it is told to stop (SIGTERM or SIGINT).", _run)
    run.add_argument("--master", help="Spark's master, local[*] if not given; spark-submit has its own --master")
    check = add("check", "Try every address, topic, table, schema and view that the settings name.", _check)
    status = add(
        "status", "Show what the running service does and did: exit status 0 when its query runs, else 1.", _status
    )
    status.add_argument("--json", action="store_true", help="all of it, as JSON")
    status.add_argument("-n", dest="batches", type=int, default=10, metavar="N", help="the last N batches, at most 50")
    republish = add(
        "republish",
        "Publish again all values that have not expired, by the running service if there is one.",
        _republish,
    )
    schemas = add(
        "schemas",
        "Try new Avro schemas against those in use and against [input], before anyone writes with them.",
        _schemas,
    )
    schemas.add_argument("action", choices=("check",), help="say what would become of their records")
    schemas.add_argument("files", nargs="+", type=Path, metavar="AVSC", help="new schemas")
    checkpoint = add("checkpoint", "Look at service.checkpoint, or prepare it.", _checkpoint)
    checkpoint.add_argument(
        "action",
        choices=("verify", "show", "init"),
        help="read every file and all of the state; show the manifest; write the manifest of a checkpoint without one",
    )
    correct = add("correct", "Put late readings that were rejected into the final values they belong to.", _correct)
    correct.add_argument("--since", required=True, metavar="TIME", help="those that the broker got since, such as 2h")
    correct.add_argument("--until", metavar="TIME", help="those that the broker got before")
    correct.add_argument("--again", action="store_true", help="also those that were corrected before: for a new prefix")
    skip = add("skip", "Give up offsets that the service has named as unreadable, and nothing else.", _skip)
    skip.add_argument("offsets", nargs="+", metavar="TOPIC:PARTITION:OFFSET[-OFFSET]", help="both ends are included")
    skip.add_argument("--dry-run", action="store_true", help="only say what would be skipped")
    profile = add("profile", "Draw expectations of the readings from the newest records of the topics.", _profile)
    profile.add_argument(
        "--readings", type=reject_commands.count, default=20_000, metavar="N", help="of so many records; 20000"
    )
    profile.add_argument(
        "--out", type=Path, metavar="FILE", help="quality.expectations, else schemas/readings.expectations.json"
    )
    profile.add_argument("--replace", action="store_true", help="write over the file that is there")
    devices = add("devices", "List devices that need somebody to look at them.", _devices)
    devices.add_argument("--skewed", action="store_true", required=True, help="those whose clocks are ahead")
    devices.add_argument("--json", action="store_true", help="as JSON, times in ms")
    republish.add_argument(
        "--dry-run", action="store_true", help="only say who would do it, from which batch and records"
    )
    checkpoint.add_argument("--dry-run", action="store_true", help="init: only show the manifest that would be written")
    correct.add_argument("--dry-run", action="store_true", help="only say how many values would be corrected")
    for command in (run, check, status, checkpoint, republish, schemas, correct, skip, profile, devices):
        command.add_argument("--config", type=Path, required=True, metavar="FILE", help="the settings, tidemark.toml")
    reject_commands.add(add("rejects", "What was not admitted: list it, show it, send it again.", reject_commands.run))
    add("version", "Print the versions of Tidemark, Spark and Python.", _version)
    return parser


def _log(debug: bool) -> None:
    """Set up the log of Tidemark on standard error, and that of other libraries from WARNING. The JVM's is log4j's."""
    form = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(form)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("service", "state"):
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)
    # py4j logs what foreachBatch raises, Stopping too. The runner reports the end of the query itself.
    logging.getLogger("py4j").setLevel(logging.WARNING if debug else logging.CRITICAL)
    os.environ.setdefault(TRACE, "full" if debug else "none")


if __name__ == "__main__":
    program()
