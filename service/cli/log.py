"""The log of a command on standard error: one line, or one JSON object, for each record, without secrets.

The log of the JVM is configured in deploy/log4j2.properties. It has the same two forms, by the variable FORM.
"""

import json
import logging
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from service import threads
from service.printing import complete, printable
from service.redaction import Secrets, redacted

if TYPE_CHECKING:
    from service.errors import TidemarkError
    from service.settings import Settings

FORM = "TIDEMARK_LOG"
"""What deploy/log4j2.properties writes: "text" or "json"."""
TRACE = "TIDEMARK_TRACE"
"""What deploy/log4j2.properties prints of exceptions in the JVM: "none" or "full"."""
TASKS = "TIDEMARK_TASK_LOG"
"""The level from which executors log failed tasks: the driver logs each failure that ends a batch, so "off" without --debug."""
_OURS = ("service", "state")


def log(debug: bool, *several: "Settings") -> None:
    """Set up the log: Tidemark's from INFO, or DEBUG, that of other libraries from WARNING.

    The settings, once they are loaded, give the form of the lines and the secrets to replace. Call it before the JVM starts.
    """
    form = several[0].service.log if several else "text"
    secrets = Secrets(*several)
    handler = logging.StreamHandler()
    handler.setFormatter(_Json(secrets) if form == "json" else _Text(secrets))
    # By the name of the logger, not by levels: Great Expectations gives its own loggers the level INFO.
    handler.addFilter(lambda record: record.name.partition(".")[0] in _OURS or record.levelno >= logging.WARNING)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in _OURS:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)
    # py4j logs what foreachBatch raises, Stopping too. The runner reports the end of the query itself.
    logging.getLogger("py4j").setLevel(logging.WARNING if debug else logging.CRITICAL)
    os.environ.setdefault(TRACE, "full" if debug else "none")
    os.environ.setdefault(TASKS, "warn" if debug else "off")
    if several:
        os.environ.setdefault(FORM, form)


def is_debug() -> bool:
    """Whether the log was set up with --debug."""
    return logging.getLogger(_OURS[0]).level == logging.DEBUG


def report(error: "TidemarkError") -> None:
    """Write the error that ends the command: as lines of text, or as a record of the JSON log."""
    if any(isinstance(handler.formatter, _Json) for handler in logging.getLogger().handlers):
        fields = {"code": error.code, "status": error.status}
        logging.getLogger("service").error("%s", error, extra={"fields": fields})
        return
    for line in complete(f"tidemark: {error.code}: {error}").splitlines():
        print(printable(line), file=sys.stderr, flush=True)


class _Text(logging.Formatter):
    def __init__(self, secrets: Secrets) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return redacted(complete(super().format(record), threads.pipeline()), self._secrets.current())

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        name = threads.pipeline()
        if name:
            record.message = f"[{name}] {record.message}"
        return super().formatMessage(record)


class _Json(logging.Formatter):
    """Each record as an object with time, level, logger, message and the fields of `extra={"fields": {...}}`."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        document: dict[str, Any] = {"time": at, "level": record.levelname, "logger": record.name}
        if threads.pipeline():
            document["pipeline"] = threads.pipeline()
        document["message"] = complete(record.getMessage(), threads.pipeline())
        document |= {name: value for name, value in getattr(record, "fields", {}).items() if name not in document}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        secrets = self._secrets.current()
        clean = {name: redacted(each, secrets) if isinstance(each, str) else each for name, each in document.items()}
        return json.dumps(clean, default=str)
