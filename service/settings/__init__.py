"""Settings: one TOML file and the environment, validated once into frozen models.

Every key has a default but the addresses. Durations and sizes are written with their unit ("10 s", "64 KiB") and kept as
integers whose names have the unit. One error reports all problems, each with its key, its value and what is allowed; an
unknown key is a problem. A secret comes from a file (`password_file`) or the environment and prints as `***`.

Environment: `TIDEMARK_<SECTION>__<KEY>` overrides a scalar key, as in `TIDEMARK_REDIS__URL`.
"""

from service.settings.input import EVENT_TIME as EVENT_TIME
from service.settings.input import RESERVED_MEASURES as RESERVED_MEASURES
from service.settings.input import Admission as Admission
from service.settings.input import Input as Input
from service.settings.input import Measure as Measure
from service.settings.input import NamedInput as NamedInput
from service.settings.input import Registry as Registry
from service.settings.kafka import Kafka as Kafka
from service.settings.loading import document as document
from service.settings.loading import load as load
from service.settings.loading import loads as loads
from service.settings.loading import parse as parse
from service.settings.loading import read as read
from service.settings.outlets import JdbcOutlet as JdbcOutlet
from service.settings.outlets import KafkaOutlet as KafkaOutlet
from service.settings.outlets import Outlet as Outlet
from service.settings.outlets import ParquetOutlet as ParquetOutlet
from service.settings.redis import Redis as Redis
from service.settings.reference import Reference as Reference
from service.settings.section import LARGEST as LARGEST
from service.settings.section import YEAR_MS as YEAR_MS
from service.settings.settings import Metrics as Metrics
from service.settings.settings import Settings as Settings
from service.settings.several import load_named as load_named
from service.settings.several import name_of as name_of
from service.settings.several import require_apart as require_apart
from service.settings.source import RECORD_KEY as RECORD_KEY
from service.settings.views import EVENTS as EVENTS
from service.settings.views import NO_WINDOW as NO_WINDOW
from service.settings.views import Sessions as Sessions
from service.settings.views import View as View
from service.settings.views import ViewVersion as ViewVersion
