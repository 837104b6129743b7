"""The settings of a service that need no more than they must, for tests that ask for nothing else of them."""

from collections.abc import Mapping
from typing import Any

from service.settings import Settings, parse

SECTIONS: Mapping[str, Any] = {
    "service": {"checkpoint": "checkpoint"},
    "kafka": {"bootstrap": "localhost:1", "topics": ["readings"]},
    "input": {"format": "json", "measures": {"temperature": "temperature"}},
    "views": [{"name": "all", "window": "1 m"}],
    "redis": {"url": "redis://localhost"},
}


def document(**sections: Any) -> dict[str, Any]:
    """Return the document; the keys of a section that is given replace those of SECTIONS, and a list of views all of them."""
    merged = dict(SECTIONS)
    for name, section in sections.items():
        merged[name] = {**merged.get(name, {}), **section} if isinstance(section, Mapping) else section
    return merged


def settings(**sections: Any) -> Settings:
    """Return the settings of `document`."""
    return parse(document(**sections))
