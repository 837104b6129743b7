"""Settings: one TOML file and the environment, validated once into frozen models.

Every key has a default but the addresses. Durations and sizes are written with their unit ("10 s", "64 KiB") and kept as
integers whose names have the unit. One error reports all problems, each with its key, its value and what is allowed; an
unknown key is a problem. A secret comes from a file (`password_file`) or the environment and prints as `***`.

Environment: `TIDEMARK_<SECTION>__<KEY>` overrides a scalar key, as in `TIDEMARK_REDIS__URL`.
"""

from service.settings.loading import load, parse
from service.settings.models import (
    LARGEST,
    RECORD_KEY,
    RESERVED_MEASURES,
    YEAR_MS,
    Input,
    Kafka,
    Metrics,
    Redis,
    Reference,
    Registry,
    Settings,
    View,
)

__all__ = [
    "LARGEST",
    "RECORD_KEY",
    "RESERVED_MEASURES",
    "YEAR_MS",
    "Input",
    "Kafka",
    "Metrics",
    "Redis",
    "Reference",
    "Registry",
    "Settings",
    "View",
    "load",
    "parse",
]
