"""What the driver and the tasks of a batch tell each other of schema ids that are not known; schemas.py says why.

The driver's word is a local property of the thread that runs the batch, which Spark hands to the tasks of its jobs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from pyspark import TaskContext

from service.errors import SchemaError

REFUSED = "tidemark.schemas.refused"
"""The property: ids whose records are to be rejected, with commas between. Where it is not set, nobody is to be asked."""
ALL = "*"
ASKED_AT_ONCE = 32
_SHOWN = "schema ids "


class UndecidedError(SchemaError):
    """Raised by a task that has met schema ids without a verdict, before anything of the batch is written. It ends nothing.

    Between task and driver it is text, whatever it holds: Spark 4.1.1 hands over the traceback of a Python worker that failed,
    and none of its accumulators. service/pipeline/failure.py makes it anew from that; `numbers` reads what `of` has
    written, and that is nothing but integers.
    """

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """The error that names these ids."""
        return cls(shown(numbers))

    @property
    def numbers(self) -> list[int]:
        """The ids that it names."""
        return [int(each) for each in self.what.removeprefix(_SHOWN).split(", ")]


@dataclass(frozen=True, slots=True)
class UnknownSchemaCheck:
    """Whether records may be rejected for their ids: in a task, before they are."""

    def __call__(self, numbers: Mapping[int, int]) -> None:
        """`numbers` has how many records each id has: what comes most often is looked up first.

        Raises UndecidedError for ids without a verdict.
        """
        context = TaskContext.get()
        said = None if context is None else context.getLocalProperty(REFUSED)
        if said is None or said == ALL:
            return
        refused = {int(each) for each in said.split(",") if each}
        new = sorted(numbers.keys() - refused, key=lambda number: -numbers[number])
        if new:
            raise UndecidedError.of(new[:ASKED_AT_ONCE])


def shown(numbers: Iterable[int]) -> str:
    return _SHOWN + ", ".join(map(str, numbers))
