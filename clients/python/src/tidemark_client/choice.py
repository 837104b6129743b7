"""Which devices are asked for: by status and attributes, in an order, the first of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemark_client import arguments
from tidemark_client.errors import ArgumentError
from tidemark_client.values import Device

STATUSES = ("online", "quiet", "offline", "never")


@dataclass(frozen=True)
class Choice:
    """Devices with this status, with these values of attributes; in the order of `sort`, at most `limit`.

    `sort` is "id", "last_seen", an attribute or a measure, whose newest value it is; "-" before it begins with the largest.
    Devices that lack it come last, those that are alike in the order of their ids. A name that is an attribute and a measure is
    the measure. Without `sort` there is no order.
    """

    status: str | None = None
    where: Mapping[str, str] = field(default_factory=dict)
    sort: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        arguments.texts(
            status=self.status, sort=self.sort, **{f"where[{name!r}]": text for name, text in self.where.items()}
        )
        if self.status is not None and self.status not in STATUSES:
            raise ArgumentError(f"status = {self.status!r}: give one of {', '.join(STATUSES)}")
        if self.limit is not None:
            arguments.counts(limit=self.limit)
            if self.limit < 0:
                raise ArgumentError(f"limit = {self.limit}: give 0 or more, or None for all devices")

    @property
    def is_bounded(self) -> bool:
        """Whether all devices are read before the first is answered."""
        return self.sort is not None

    def accepts(self, device: Device) -> bool:
        """Whether a device has the status and the attributes."""
        is_of_status = self.status is None or device.status == self.status
        return is_of_status and all(device.attributes.get(name) == text for name, text in self.where.items())

    def first(self, devices: Iterable[Device]) -> list[Device]:
        """The accepted devices in the order of `sort`, at most `limit`, each once."""
        distinct = {each.id: each for each in devices if self.accepts(each)}
        name = self.sort or "id"
        by, is_descending = (name[1:], True) if name.startswith("-") else (name, False)
        in_order = sorted(distinct.values(), key=lambda each: each.id)
        is_measure = any(by in each.latest for each in in_order)
        values = {each.id: _value(each, by, is_measure=is_measure) for each in in_order}
        known = [each for each in in_order if values[each.id] is not None]
        lacking = [each for each in in_order if values[each.id] is None]
        limit = len(distinct) if self.limit is None else self.limit
        choose = heapq.nlargest if is_descending else heapq.nsmallest
        return (choose(limit, known, key=lambda each: values[each.id]) + lacking)[:limit]


def _value(device: Device, name: str, *, is_measure: bool) -> Any:
    """Any: a text, a number or None; for one name they are of one type."""
    if name == "id":
        return device.id
    if name == "last_seen":
        return device.last_seen or None
    if is_measure:
        reading = device.latest.get(name)
        return None if reading is None else reading.value
    return device.attributes.get(name)
