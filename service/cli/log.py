"""The log of a command: standard error."""

import logging
import os
import time

TRACE = "TIDEMARK_TRACE"
"""What deploy/log4j2.properties prints of exceptions in the JVM: "none" or "full"."""


def log(debug: bool) -> None:
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
