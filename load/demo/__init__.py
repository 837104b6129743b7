"""The demo: the service on embedded servers, watched live and then checked, value by value. `python -m load.demo --help`.

A broker, Redis, a reference database and two generators of one seeded fleet are started: the devices send their temperature in
Avro on one topic and their power in JSON on another. The service is submitted with spark-submit, and the dashboard page and a
view in the terminal show what happens. Then the load stops, the service publishes all of it and stops, and everything in Redis
and in the rejects topics is compared with the oracle, which has read the topics itself. This module has the settings of the
demo's service.
"""

from collections.abc import Mapping
from typing import Any

from load.fleet.encode import SCHEMAS
from load.judge.statistics import DEFAULT
from load.testbed import TOPIC

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
METERS = "meters"
"""The topic of the second input."""
INPUTS: tuple[Mapping[str, Any], ...] = (
    {
        "name": "readings",
        "topics": [TOPIC],
        "schemas": str(SCHEMAS),
        "event_time_unit": "logical",
        "measures": {"temperature": "temperature"},
    },
    {
        "name": METERS,
        "topics": [METERS],
        "format": "json",
        "measures": {"power": "power"},
        "where": "power > 100",  # also leaves out the devices that have no power
    },
)
SECTIONS: Mapping[str, Mapping[str, Any]] = {
    "input": {"measures": {"temperature": "temperature", "power": "power"}},
    "admission": {"max_delay": "8 s", "max_ahead": "2 s", "unknown_device": "reject"},
    "sessions": {"gap": "10 s", "max_duration": "10 m", "retain": "1 d"},
    "redis": {"feed_length": 200_000},
}
