"""The demo: the service on embedded servers, watched live and then checked, value by value. `python -m load.demo --help`.

A broker, Redis, a reference database and a seeded generator are started, the service is submitted with spark-submit, and the
dashboard page and a view in the terminal show what happens. Then the load stops, the service publishes all of it and stops, and
everything in Redis and in the rejects topic is compared with the oracle, which has read the topic itself. This module has the
settings of the demo's service.
"""

from collections.abc import Mapping
from typing import Any

from load.judge.statistics import DEFAULT

VIEWS: tuple[Mapping[str, Any], ...] = (
    {"name": "device", "by": ["device"], "window": "1 m", "retain": "1 d"},
    {
        "name": "type",
        "by": ["type"],
        "window": "10 s",
        "statistics": [*DEFAULT, "rate", "p95", "distinct"],
        "retain": "1 d",
    },
    {"name": "site", "by": ["site"], "window": "1 m", "slide": "10 s", "retain": "1 d"},
    {"name": "all", "window": "10 s", "retain": "1 d"},
    {"name": "total", "by": ["device"], "window": "none"},
)
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "input": {"measures": {"temperature": "temperature", "power": "power"}},
    "admission": {"max_delay": "8 s", "max_ahead": "2 s", "unknown_device": "reject"},
    "sessions": {"gap": "10 s", "max_duration": "10 m", "retain": "1 d"},
    "redis": {"feed_length": 200_000},
}
