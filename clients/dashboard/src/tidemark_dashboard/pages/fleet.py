"""The fleet: devices by status and by the reference's columns, and a list of them to search and to page through."""

from __future__ import annotations

from tidemark_client import queries
from tidemark_dashboard.fleet import SKEWED, STATUSES, Filter
from tidemark_dashboard.pages import Page, Query, Shown, address
from tidemark_dashboard.sources import Sources

SIZE = 50
GROUPS = 12
"""Values of a column that are shown before "all" is asked for."""
MOST_GROUPS = 500


async def read(sources: Sources, query: Query) -> Shown:
    """The counts and groups come from the index in memory; Redis is asked for the devices of this page alone."""
    fleet = sources.fleet
    status = query.get("status", "")
    chosen = Filter(
        query.get("q", ""),
        status if status in {*STATUSES, SKEWED} else "",
        query.get("column", ""),
        query.get("value", "") if query.get("column") else "",
    )
    ids, earlier, later = fleet.page(chosen, SIZE, after=query.get("after", ""), before=query.get("before", ""))
    await sources.look()
    found = await sources.ask_all(queries.device(each) for each in ids)
    devices = [device for device in found if device is not None]
    columns = fleet.columns
    by = query.get("by", "") if query.get("by", "") in columns else (columns[0] if columns else "")
    groups = sorted(fleet.by.get(by, {}).items(), key=lambda each: (-each[1].all, each[0]))
    limit = MOST_GROUPS if query.get("groups") == "all" else GROUPS

    def here(**changed: object) -> str:
        words = {**query, "after": "", "before": "", **changed}
        return address("/", **words)

    context = {
        "fleet": fleet,
        "chosen": chosen,
        "devices": devices,
        "matches": fleet.count(chosen),
        "columns": columns,
        "by": by,
        "groups": groups[:limit],
        "more_groups": max(0, len(groups) - limit),
        "measures": sorted({name for device in devices for name in device.latest}),
        "earlier": here(before=ids[0]) if earlier and ids else "",
        "later": here(after=ids[-1]) if later and ids else "",
        "here": here,
        "statuses": STATUSES,
    }
    return Shown.of(context, ("fleet",), (("device", each) for each in ids))


PAGE = Page(
    "fleet",
    "/",
    "Fleet",
    ("fleet_counts", "fleet_groups", "fleet_devices"),
    ("q", "status", "column", "value", "by", "groups", "after", "before"),
    read,
)
