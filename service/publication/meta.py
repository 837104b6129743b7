"""What a reader has to know of the service: the text of `<prefix>:meta`."""

import json

from service.settings import Settings

CONTRACT = 3
"""The version of schemas/redis.md. A service refuses a prefix whose values were written by another one."""


def meta(settings: Settings) -> str:
    """JSON: the contract's version, the views, the sessions and the measures; durations in ms, as in the settings."""
    sessions = settings.sessions
    return json.dumps(
        {
            "contract": CONTRACT,
            "measures": list(settings.input.measures),
            "views": [
                {
                    "name": view.name,
                    "by": view.by,
                    "measures": settings.view_measures(view),
                    "window_ms": view.window_ms,
                    "slide_ms": view.step_ms,
                    "retain_ms": view.retain_ms,
                }
                for view in settings.views
            ],
            "sessions": {
                "gap_ms": sessions.gap_ms,
                "max_duration_ms": sessions.max_duration_ms,
                "retain_ms": sessions.retain_ms,
            },
        }
    )


def contract_of(text: str) -> int:
    """The version in such a text; 1 without one."""
    try:
        return int(json.loads(text)["contract"])
    except (ValueError, KeyError, TypeError):
        return 1
