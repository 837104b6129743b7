"""The entries of a process: a shell's, spark-submit's, and `main` for both."""

import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from typer.exceptions import TyperException
from typer.main import get_command

from service.cli.command import app
from service.cli.log import report
from service.errors import SetupError


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. An error is one line on standard error; --debug adds a traceback.

    Raises SystemExit with 2 for a wrong command line.
    """
    load()
    try:
        status = get_command(app)(args=words, prog_name="tidemark", standalone_mode=False)
    except OSError as error:
        return _unwritten(error)
    except TyperException as error:
        show: Callable[[], None] | None = getattr(error, "show", None)  # of the classes for wrong command lines
        show() if show is not None else print(f"tidemark: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    return int(status or 0)


def _unwritten(error: OSError) -> int:
    """Report that the output has no room, and return the exit status. Raises any other error."""
    if error.filename is not None or error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        raise error
    what = f"standard output cannot be written ({error.strerror}), and what follows is lost"
    failure = SetupError(what, remedy="Make room, or redirect the output to another disk")
    report(failure)
    return failure.status


def load() -> None:
    """Import the groups of commands: each adds its commands to the application, in the order of the help text."""
    from service.cli import first, serve, views, values, rejects, checkpoint, package  # noqa: F401, I001


def daemon() -> None:
    """The entry for spark-submit: `deploy/daemon.py --config F` is `tidemark run --config F` in spark-submit's JVM."""
    _keep_private()
    _leave(main(["run", *sys.argv[1:]]))


def program() -> None:
    """The entry for a shell: `tidemark`, and `python -m service.cli`."""
    _open_streams()
    _keep_private()
    if isinstance(sys.stdout, io.TextIOWrapper):  # as standard error: characters outside of the encoding are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    _leave(main())


def _open_streams() -> None:
    """Open /dev/null in the place of standard streams that are closed, as by `>&-`, for this process and its children.

    A socket to Kafka or Redis would have the number of the stream otherwise, and get what a JVM or a library writes there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # each takes the lowest number that is free
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - it is open until the process ends
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _keep_private() -> None:
    """Give the files of every command to its user alone, and its processes no module of the folder where it is started.

    A JVM and every other child inherit both; under spark-submit the scripts set them before the JVM starts.
    """
    os.umask(0o077)
    os.environ["PYTHONSAFEPATH"] = "1"


def _leave(status: int) -> NoReturn:
    """End the process with this status, without finalizing the interpreter.

    Finalizing aborts while a native thread of a client or of Spark still returns: one in six runs that ended 10 s after
    their start died of SIGABRT (Python 3.11, "PyGILState_Release: thread state must be current when releasing").
    """
    errors = sys.modules.get("service.spark.jvm_errors")  # it is imported by what starts a JVM
    if errors is not None:
        errors.drain()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            pass
        except OSError as error:
            with suppress(OSError):  # standard error has no room either
                status = _unwritten(error)
    os._exit(status)
