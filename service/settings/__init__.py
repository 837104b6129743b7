"""Settings: one TOML file and the environment, validated once into frozen models.

Every key has a default but the addresses. Durations and sizes are written with their unit ("10 s", "64 KiB") and kept as
integers whose names have the unit. One error reports all problems, each with its key, its value and what is allowed; an
unknown key is a problem. A secret comes from a file (`password_file`) or the environment and prints as `***`.

Environment: `TIDEMARK_<SECTION>__<KEY>` overrides a scalar key, as in `TIDEMARK_REDIS__URL`.
"""

from service.settings.loading import load as load
from service.settings.loading import parse as parse
from service.settings.models import EVENTS as EVENTS
from service.settings.models import LARGEST as LARGEST
from service.settings.models import RECORD_KEY as RECORD_KEY
from service.settings.models import RESERVED_MEASURES as RESERVED_MEASURES
from service.settings.models import YEAR_MS as YEAR_MS
from service.settings.models import Admission as Admission
from service.settings.models import Input as Input
from service.settings.models import Kafka as Kafka
from service.settings.models import Measure as Measure
from service.settings.models import Metrics as Metrics
from service.settings.models import Redis as Redis
from service.settings.models import Reference as Reference
from service.settings.models import Registry as Registry
from service.settings.models import Sessions as Sessions
from service.settings.models import Settings as Settings
from service.settings.models import View as View
