"""One device: its newest values, its windows and sessions on one axis of time, its facts, and its early readings."""

from __future__ import annotations

import shlex

from tidemark_client import View, queries
from tidemark_client.values import SESSION_STATISTICS
from tidemark_dashboard import statistics
from tidemark_dashboard.pages import NotFoundError, Page, Query, Shown, address
from tidemark_dashboard.pages.series import fitted, moves, plot, span, spans, summary
from tidemark_dashboard.sources import Sources
from tidemark_dashboard.texts import shown

SESSIONS = 50


async def read(sources: Sources, query: Query) -> Shown:
    """Redis is asked for the device, its sessions of the span, and its windows of the view by device with the finest slide."""
    device_id = query.get("id", "")
    if not device_id:
        raise NotFoundError("The address names no device")
    meta = await sources.meta()
    await sources.look()
    device = await sources.ask(queries.device(device_id))
    of_device = (view for view in meta.views.values() if view.by == ("device",) and not view.endless)
    views = sorted(of_device, key=lambda view: view.step_ms)
    view = next((each for each in views if each.name == query.get("name")), views[0] if views else None)
    # Without such a view, the sessions alone have the axis.
    axis = view or View("", ("device",), (), meta.session_gap_ms, meta.session_gap_ms, meta.session_retain_ms)
    last_seen = device.last_seen if device else 0
    end = axis.end(last_seen) if axis.calendar else (last_seen // axis.slide_ms + 1) * axis.slide_ms
    stretch = span(axis, end, query.get("span", ""), query.get("until", ""))
    # A session that began before the span may reach into it.
    since = stretch.since - meta.session_max_duration_ms
    sessions = [
        each
        for each in await sources.ask(queries.sessions(device_id, since))
        if each.last >= stretch.since and each.start < stretch.until
    ]
    measures = [name for name in view.measures if device is None or name in device.latest] if view else []
    found = await sources.ask_all(
        queries.windows(view.name, device_id, since=stretch.since, until=stretch.until, measure=measure)
        for measure in measures
        if view is not None
    )
    oldest = sorted((windows[0] for windows in found if windows), key=lambda each: each.start)
    stretch = fitted(axis, stretch, oldest, query.get("span", ""))
    units = sources.options.units
    statistic = statistics.chosen(axis, query.get("stat", ""))
    plots = [
        (
            measure,
            plot(windows, axis, statistic, stretch, sessions),
            summary(windows, measure, statistics.unit(statistic, units.get(measure, ""), axis), statistic),
        )
        for measure, windows in zip(measures, found, strict=True)
    ]

    def here(**changed: object) -> str:
        return address("/device", **{**query, **changed})

    context = {
        "id": device_id,
        "device": device,
        "view": view,
        "views": views,
        "span": stretch,
        "spans": spans(axis),
        "plots": plots,
        "sessions": sessions[::-1][:SESSIONS],
        "ordered": [
            (name, statistic)
            for name in meta.session_measures
            for statistic in meta.session_statistics
            if statistic not in SESSION_STATISTICS
        ],
        "hidden": max(0, len(sessions) - SESSIONS),
        "meta": meta,
        "here": here,
        "moves": moves(stretch, axis, here),
        "statistic": statistic,
        "statistics": statistics.plotted(axis) if view else [],
        "has_rejects": sources.rejects.is_known,
        "newest": sources.rejects.newest(device_id),
        "command": f"tidemark rejects list --config tidemark.toml --device {shlex.quote(shown(device_id))}",
    }
    windows = [("window", view.stored, device_id)] if view else []
    return Shown.of(context, ("device", device_id), ("rejects", device_id), windows)


PAGE = Page(
    "device",
    "/device",
    "Device",
    ("device_now", "device_plots", "device_sessions", "device_early"),
    ("id", "name", "stat", "span", "until"),
    read,
)
