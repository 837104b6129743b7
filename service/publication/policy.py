"""What a writer of values may do, by why it writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from service.publication.covered import Covered

_NOTHING: Mapping[int, Covered] = MappingProxyType({})
_NO_MARKS: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WritePolicy:
    """The rights and duties of a writer. Make one with a constructor; publish.lua's `verdict` decides about each row.

                   stream     idle       republish  fill       correct
    after          yes        yes                              always: as of the micro-batch
    settled_ms     yes
    covered        yes                   yes
    is_complete                          yes        yes        yes
    is_last                                         at last
    closed_by      watermark  idle       watermark  watermark  watermark
    number, marks                                              yes

    after        the (epoch, batch) that progress must have reached; None if it is not known
    settled_ms   once the watermark has passed it, rows are compared with closed values only; None for never
    covered      by shard: values in these spans are not written
    is_complete  rows have all readings, as of the micro-batch's watermark: their TTL is reduced by their age, and they replace
                 closed windows that lack the readings before their view began, unless those have more readings
    is_last      they replace these as well: no reading is to come, and a device may have moved to another key
    closed_by    the reason why closed sessions are closed
    number       the run that writes over closed values, and over no others; no newer run may have begun
    marks        by shard: the mark of the republish that writes corrections again
    """

    after: tuple[int, int] | None = None
    settled_ms: int | None = None
    covered: Mapping[int, Covered] = field(default_factory=dict)
    is_complete: bool = False
    is_last: bool = False
    closed_by: Literal["watermark", "idle"] = "watermark"
    number: int | None = None
    marks: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def stream(
        cls,
        after: tuple[int, int] | None = None,
        settled_ms: int | None = None,
        covered: Mapping[int, Covered] = _NOTHING,
    ) -> "WritePolicy":
        """The query writes its batches, one after the other."""
        return cls(after, settled_ms, dict(covered))

    @classmethod
    def idle(cls, after: tuple[int, int] | None = None) -> "WritePolicy":
        """Silence has closed values of the last batch."""
        return cls(after, closed_by="idle")

    @classmethod
    def republish(cls, covered: Mapping[int, Covered] = _NOTHING) -> "WritePolicy":
        """Redis has lost values: they are computed again and written beside the batches."""
        return cls(covered=dict(covered), is_complete=True)

    @classmethod
    def fill(cls, *, is_last: bool) -> "WritePolicy":
        """The past of a view that is new is computed; `is_last` says that it is complete now."""
        return cls(is_complete=True, is_last=is_last)

    @classmethod
    def correct(cls, number: int, marks: Mapping[int, str] = _NO_MARKS) -> "WritePolicy":
        """Late readings, or a backfill, change closed values beside the service."""
        return cls(is_complete=True, number=number, marks=dict(marks))


STREAM = WritePolicy.stream()
"""Of a writer for which nothing is known of what was written before."""
