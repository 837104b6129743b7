"""The fleet: devices by status and by the reference's columns, and a table of them to filter, to sort and to page through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemark_client import Device, queries
from tidemark_dashboard.fleet import FACT, ID, LAST_SEEN, MEASURE, SKEWED, STATUS, STATUSES, Filter, Fleet, Order
from tidemark_dashboard.pages import Page, Query, Shown, address
from tidemark_dashboard.sources import Sources

SIZE = 50
GROUPS = 12
"""Values of a column that are shown before "all" is asked for."""
MOST_GROUPS = 500
EMPTY = "(empty)"
"""A value without characters, in an address."""
MOST_FILTERS = 8
"""Columns in an address."""
MOST_CHOICES = 100
"""Values of a column in a list to choose from."""
SHORTCUTS = 3
"""Measures whose largest values have a link."""


@dataclass(frozen=True)
class Column:
    """A column of the table. `sorted` is "ascending", "descending" or ""; `to` sorts by it, or the other way round."""

    name: str
    title: str
    sorted: str
    to: str


async def read(sources: Sources, query: Query) -> Shown:
    """The counts, groups and the order come from the index in memory; Redis is asked for the devices of this page alone."""
    fleet = sources.fleet
    sources.want_fleet()
    chosen, order = _filter(query), Order.of(query.get("sort", ""))
    by = _column(query.get("by", ""), fleet.columns)
    survey = fleet.survey(chosen, by)
    number = _number(query.get("page", ""), len(survey.ids))
    ids = fleet.page(survey.ids, order, number * SIZE, SIZE)
    if await sources.look() is None and not ids:
        await (
            sources.meta()
        )  # raises where Redis has no values of a service: the page waits instead of counting 0 devices
    found = await sources.ask_all(queries.device(each) for each in ids)
    for each, device in zip(ids, found, strict=True):
        fleet.note(each, device)
    devices = _in_order([device for device in found if device is not None], order, fleet)
    groups = sorted(survey.groups.items(), key=lambda each: (-each[1].all, each[0]))
    limit = MOST_GROUPS if query.get("groups") == "all" else GROUPS

    def here(**changed: object) -> str:
        return address("/", **{**query, "page": "", **changed})

    matches = len(survey.ids)
    context = {
        "fleet": fleet,
        "chosen": chosen,
        "counts": survey.counts,
        "devices": devices,
        "matches": matches,
        "first": number * SIZE + 1,
        "columns": fleet.columns,
        "by": by,
        "groups": groups[:limit],
        "more_groups": max(0, len(groups) - limit),
        "measures": fleet.sent,
        "heads": _heads(fleet, order, here),
        "order": order,
        "sorted_by": _title(order.by),
        "shortcuts": _shortcuts(fleet, here),
        "choices": _choices(fleet),
        "earlier": here(page=number) if number else "",
        "later": here(page=number + 2) if (number + 1) * SIZE < matches else "",
        "here": here,
        "without": lambda column: here(**{f"f.{column}": ""}),
        "only": lambda column, value: here(**{f"f.{column}": value or EMPTY}),
        "statuses": STATUSES,
        "conditions": (*STATUSES, SKEWED),
        "empty": EMPTY,
    }
    return Shown.of(context, ("fleet",), (("device", each) for each in ids))


def _filter(query: Query) -> Filter:
    status = query.get("status", "")
    facts = [(name[2:], "" if value == EMPTY else value) for name, value in query.items() if name.startswith("f.")]
    return Filter(query.get("q", ""), status if status in {*STATUSES, SKEWED} else "", tuple(facts[:MOST_FILTERS]))


def _column(wanted: str, columns: Sequence[str]) -> str:
    return wanted if wanted in columns else (columns[0] if columns else "")


def _number(text: str, matches: int) -> int:
    """The number of a page from 0 on; the last one for a number behind it."""
    number = int(text[:9]) - 1 if text[:9].isdecimal() else 0
    return max(0, min(number, (matches - 1) // SIZE))


def _title(by: str) -> str:
    return {ID: "Device", STATUS: "Status", LAST_SEEN: "Last reading"}.get(by, by.partition(".")[2])


def _heads(fleet: Fleet, order: Order, here: Callable[..., str]) -> dict[str, Column]:
    names = [ID, STATUS, LAST_SEEN, *(FACT + each for each in fleet.columns), *(MEASURE + each for each in fleet.sent)]
    heads = {}
    for name in names:
        is_sorted = name == order.by
        other = Order(name, not order.is_descending if is_sorted else name.startswith(MEASURE))
        way = ("descending" if order.is_descending else "ascending") if is_sorted else ""
        heads[name] = Column(name, _title(name), way, here(sort="" if other == Order() else str(other)))
    return heads


def _shortcuts(fleet: Fleet, here: Callable[..., str]) -> list[tuple[str, str]]:
    """Questions of an operator with their addresses."""
    found = [("Silent longest", here(sort=LAST_SEEN))]
    return found + [(f"Highest {name}", here(sort=f"-{MEASURE}{name}")) for name in fleet.sent[:SHORTCUTS]]


def _choices(fleet: Fleet) -> dict[str, list[str]]:
    """The values of the columns that have few."""
    return {column: sorted(values) for column, values in fleet.by.items() if 0 < len(values) <= MOST_CHOICES}


def _in_order(devices: list[Device], order: Order, fleet: Fleet) -> list[Device]:
    """The devices of a page in the order of their values of now; the index may have older ones."""
    by_id = {device.id: device for device in devices}
    return [by_id[each] for each in fleet.page(sorted(by_id), order, 0, len(by_id)) if each in by_id]


PAGE = Page(
    "fleet",
    "/",
    "Fleet",
    ("fleet_counts", "fleet_groups", "fleet_devices"),
    ("q", "status", "f.", "sort", "by", "groups", "page"),
    read,
)
