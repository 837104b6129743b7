"""Ask the driver for a decision, and run the batch again.

A task sees neither the records of other tasks nor a registry. A task that meets something without a decision raises
UndecidedError in the first stage of the batch, before anything of the batch is written. The driver decides, and runs the batch
again with the decision. A batch without questions runs once.

    SCHEMA_IDS      which of these ids have a schema         catalogs.LookUps
    COLUMN_VALUES   which of these values are keys of views      column_values.ColumnValues
"""

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from service.errors import SchemaError

SCHEMA_IDS, COLUMN_VALUES = "schema ids", "values of columns"
_PREFIX = "a decision of the driver is needed: "

T = TypeVar("T")


class UndecidedError(SchemaError):
    """Raised by a task that needs a decision.

    From a failed Python worker the driver gets only the text of the traceback, and no accumulators (Spark 4.1.1). Blanks of the
    text are lost, so the question is packed. service/pipeline/failure.py makes the same error of the text.
    """

    @classmethod
    def of(cls, subject: str, asked: Any) -> Self:
        """Return the question about a subject; `asked` can be JSON."""
        return cls(_PREFIX + base64.b64encode(zlib.compress(json.dumps([subject, asked]).encode())).decode())

    @property
    def question(self) -> tuple[str, Any]:
        """The subject, and what is asked about it."""
        subject, asked = json.loads(zlib.decompress(base64.b64decode(self.what.removeprefix(_PREFIX))))
        return subject, asked


def until_decided(
    action: Callable[[], T], deciders: Mapping[str, Callable[[Any], bool]], classify: Callable[[Exception], Exception]
) -> T:
    """Return the result of `action`, which runs a batch, and runs it again after each question that is decided.

    A decider gets what is asked about its subject, and returns whether the next run gets other decisions. `classify` finds the
    task's error in Spark's. Raises what `action` and the deciders raise.
    """
    while True:
        try:
            return action()
        except Exception as error:
            undecided = classify(error)
            if not isinstance(undecided, UndecidedError):
                raise
            subject, asked = undecided.question
            if not deciders[subject](asked):
                raise
