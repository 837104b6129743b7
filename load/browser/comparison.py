"""What the pages show, compared with the hashes of Redis and the answers of the service: one function for each table."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from playwright.sync_api import Page

from load.browser.redis_history import Hash
from load.browser.tables import Cell, Row, facts, same, table
from schemas import contract

PREFIX = "tidemark"
NOTHING = Cell("")
DASH = "\u2013"

_TILES = """() => Object.fromEntries([...document.querySelectorAll('#fleet_counts .tiles a')].map(tile => {
  const name = tile.querySelector('.status') || tile.querySelector('.label');
  return [name.textContent.trim(), tile.querySelector('.big').textContent];
}))"""

TITLES = {
    "count": "Readings",
    "sum": "Sum",
    "mean": "Mean",
    "min": "Min",
    "max": "Max",
    "stddev": "Standard deviation",
    "p99": "p99",
    "rate": "Rate",
}
"""The headings of statistics on the page. Those of "first" and "last" are times."""

_FIGURES = """section => [...document.querySelectorAll(`#${section} figure`)].map(
  ({dataset}) => [dataset.measure, dataset.statistic, dataset.plot])"""

Rows = dict[str, Callable[[Hash], Iterator[str]]]
"""By the key of Redis: what differs between what a page shows and a version of the key's hash."""


def device_rows(page: Page, columns: Iterable[str], measures: Iterable[str]) -> Rows:
    """The list of devices."""
    rows = table(page, "table.devices")

    def compare(row: Row, held: Hash) -> Iterator[str]:
        yield from _unlike("Status", row["Status"].text, _status(held))
        yield from _unlike("Last reading", row["Last reading"].times, _times(held.get("last_seen")))
        for column in columns:
            yield from _unlike(column, row[column].text, held.get(f"ref.{column}", DASH))
        for measure in measures:
            if measure in row:
                yield from _number(measure, row[measure], held.get(measure))

    return {f"{PREFIX}:device:{key}": _of(compare, row) for key, row in rows.items()}


def view_rows(
    page: Page, view: str, measure: str, window_ms: int, progress: Iterable[Hash], statistic: str = "mean"
) -> Rows:
    """The list of a view's keys with their newest complete windows, and the open ones beside them. A window without readings of
    the measure has no values.
    """
    rows: Rows = {}
    for key, row in table(page, "#view_keys table").items():
        for end in row["Open now"].times:
            rows[f"{PREFIX}:window:{view}:{measure}:{key}:{end - window_ms}"] = _of(_open(statistic), row)
        if row[TITLES[statistic]].text == DASH:
            continue
        end = row["Window ends"].times[0]
        rows[f"{PREFIX}:window:{view}:{measure}:{key}:{end - window_ms}"] = _of(_window(progress, view), row)
    return rows


def window_rows(page: Page, view: str, measure: str, key: str, progress: Iterable[Hash]) -> Rows:
    """The table of a key's windows."""
    rows = table(page, "#key_table table")
    return {
        f"{PREFIX}:window:{view}:{measure}:{key}:{start}": _of(_window(progress, view), row)
        for start, row in rows.items()
    }


def plot_points(page: Page, section: str, view: str, key: str, window_ms: int) -> Rows:
    """The points of the plots of a key or of a device: their data, which is an attribute, has all digits."""
    points: Rows = {}
    axes: set[tuple[float, float]] = set()
    figures: list[list[str]] = page.evaluate(_FIGURES, section)
    for measure, statistic, text in figures:
        plot = json.loads(text)
        axes.add(tuple(plot["axis"]))
        for number, middle in enumerate(plot["t"]):
            if plot["count"][number]:
                start = round(middle * 1000 - window_ms / 2)
                point = {statistic: plot["value"][number], "count": plot["count"][number]}
                if plot["max"][number] is not None:
                    point |= {name: plot[name][number] for name in ("min", "max")}
                points[f"{PREFIX}:window:{view}:{measure}:{key}:{start}"] = _exact(point)
    if len(axes) > 1:
        points[f"{PREFIX}:progress"] = lambda _: iter([f"the plots of a page have the axes {sorted(axes)}"])
    return points


def device_facts(page: Page, device: str, columns: Iterable[str], measures: Iterable[str]) -> Rows:
    """A device's newest values, its facts, and its early readings."""
    shown = {**facts(page, "#device_now"), **facts(page, "#device_early")}

    def compare(held: Hash) -> Iterator[str]:
        for column in columns:
            yield from _unlike(column, shown.get(column, NOTHING).text, held.get(f"ref.{column}", ""))
        for measure in measures:
            if measure in held:
                cell = shown.get(measure, NOTHING)
                yield from _number(measure, cell, held[measure])
                yield from _unlike(f"{measure}, time", cell.times, _times(held[f"{measure}.at"]))
        yield from _number("Early readings", shown.get("Early readings", Cell(DASH)), held.get("early"))

    return {f"{PREFIX}:device:{device}": compare}


def session_rows(page: Page, device: str, measures: Iterable[str]) -> Rows:
    """A device's sessions."""

    def compare(row: Row, held: Hash) -> Iterator[str]:
        yield from _unlike("Last reading", row["Last reading"].times, _times(held.get("last")))
        yield from _number("Readings", row["Readings"], held.get("count"))
        yield from _unlike("State", row["State"].text.split()[0], held.get("state"))
        for measure in measures:
            if (name := f"{measure}, mean") in row:
                yield from _number(name, row[name], held.get(f"{measure}.mean"))

    rows = table(page, "#device_sessions table")
    return {f"{PREFIX}:session:{device}:{start}": _of(compare, row) for start, row in rows.items()}


def progress_facts(page: Page) -> Rows:
    """The watermark, the epoch and the offsets of the pipeline."""
    now, partitions = facts(page, "#pipeline_now"), table(page, "#pipeline_partitions table")

    def compare(held: Hash) -> Iterator[str]:
        yield from _unlike("Watermark", now["Watermark"].times, _times(held.get("watermark")))
        yield from _number("Epoch", now["Epoch"], held.get("epoch"))
        for topic, ends in json.loads(held.get("offsets", "{}")).items():
            for number, offset in ends.items():
                yield from _number(f"{topic} {number}", partitions[f"{topic} {number}"]["Published up to"], offset)

    return {f"{PREFIX}:progress": compare}


def batches(page: Page, status: Mapping[str, Any]) -> Iterator[str]:
    """The last batches, which the service keeps as they were."""
    rows = table(page, "#pipeline_batches table")
    known = {str(each["batch"]): each for each in status.get("batches", ())}
    for key, row in rows.items():
        if (each := known.get(key)) is not None:
            yield from _number(f"batch {key}, Records", row["Records"], each["rows"])
            yield from _unlike(f"batch {key}, Finished", row["Finished"].times, (each["finished_ms"],))
    if not rows.keys() & known.keys():
        yield "no batch of the page is one of the service"


def rejects(page: Page, before: Mapping[str, float], after: Mapping[str, float]) -> Iterator[str]:
    """Rejects by reason: they only grow, so the page has a number between two answers of the service."""
    for reason, row in table(page, "#pipeline_rejects table").items():
        name = f'tidemark_rejects_total{{reason="{reason}"}}'
        shown = row["Since the service started"].number
        if shown is None or not before.get(name, 0.0) <= shown <= after.get(name, 0.0):
            yield f"rejects, {reason}: {shown}, and the service counted {before.get(name)} to {after.get(name)}"


def counts(page: Page, devices: Iterable[Hash]) -> Iterator[str]:
    """Devices by status, of all devices in Redis."""
    by_status = dict.fromkeys(("all devices", "online", "quiet", "offline", "clock ahead"), 0)
    for device in devices:
        by_status["all devices"] += 1
        by_status[device["status"]] += 1
        by_status["clock ahead"] += device.get("skewed") == "1"
    tiles: dict[str, str] = page.evaluate(_TILES)
    for name, number in by_status.items():
        yield from _unlike(f"fleet, {name}", tiles.get(name), f"{number:,}")


def fleet_order(page: Page, devices: Mapping[str, Hash], field: str, is_descending: bool) -> Iterator[str]:
    """The first devices of a sorted table: the values of all devices in Redis say which they must be."""
    values = sorted((float(each[field]) for each in devices.values() if field in each), reverse=is_descending)
    shown = [float(devices[key].get(field, "nan")) for key in table(page, "table.devices")]
    yield from _unlike(f"fleet by {field}", shown, values[: len(shown)])


def fleet_filter(page: Page, devices: Mapping[str, Hash], **fields: str) -> Iterator[str]:
    """The devices of several filters at once."""
    wanted = sorted(
        key for key, each in devices.items() if all(each.get(name) == text for name, text in fields.items())
    )
    yield from _unlike(f"fleet of {fields}", list(table(page, "table.devices")), wanted[:50])
    yield from _unlike(
        f"fleet of {fields}, number", page.inner_text(".matches").split(" device")[0], f"{len(wanted):,}"
    )


def _window(progress: Iterable[Hash], view: str) -> Callable[[Row, Hash], Iterator[str]]:
    known = [dict(each) for each in progress]

    def compare(row: Row, held: Hash) -> Iterator[str]:
        for field, name in TITLES.items():
            if name in row:
                yield from _number(name, row[name], held.get(field))
        is_final = row["State"].text.startswith(("final", "settled"))
        if is_final not in {bool(held and each and contract.closed_by(held, each, view)) for each in known}:
            yield f"State {row['State'].text!r}, of a window that ends at {held.get('end')}"
        yield from _unlike("corrected", "corrected" in row["State"].text, bool(int(held.get("revision", 0))))

    return compare


def _open(statistic: str) -> Callable[[Row, Hash], Iterator[str]]:
    def compare(row: Row, held: Hash) -> Iterator[str]:
        value, count = re.findall(r"\S+(?= of | reading)", row["Open now"].text)
        yield from _number(f"Open now, {statistic}", Cell(value), held.get(statistic))
        yield from _number("Open now, readings", Cell(count), held.get("count"))

    return compare


def _exact(point: Mapping[str, float | None]) -> Callable[[Hash], Iterator[str]]:
    def compare(held: Hash) -> Iterator[str]:
        for name, shown in point.items():
            yield from _unlike(f"plot, {name}", shown, float(held[name]) if name in held else None)

    return compare


def _of(compare: Callable[[Row, Hash], Iterator[str]], row: Row) -> Callable[[Hash], Iterator[str]]:
    return lambda held: compare(row, held)


def _number(name: str, cell: Cell, held: str | float | None) -> Iterator[str]:
    if not same(cell, held):
        yield f"{name}: {cell.text!r}, and Redis has {held}"


def _unlike(name: str, shown: object, held: object) -> Iterator[str]:
    if shown != held:
        yield f"{name}: {shown!r}, and Redis has {held!r}"


def _times(held: str | None) -> tuple[int, ...]:
    return (int(held),) if held and int(held) > 0 else ()


def _status(held: Hash) -> str:
    return held.get("status", "") + (" clock ahead" if held.get("skewed") == "1" else "")
