"""The errors, as a tree. Each family has a code, which logs and alerts match, and an exit status of the process.

    TidemarkError
    |-- SettingsError        2   the settings file, the environment, or a value in them
    |   `-- SecretFileError      a file of a password or a certificate cannot be read, or does not fit the others
    |-- SchemaError          3   a schema, an expectations file, or a type that does not fit the settings
    |   `-- RegistryError        the schema registry does not answer, and what is needed at the start is not stored
    |-- ReferenceDataError   4   the reference data: unreachable at the start, or refused by its expectations
    |   `-- ReferenceTooOldError   while running: there has been no good snapshot for longer than max_age
    |-- SourceError          5   Kafka: unreachable, or not acknowledging rejects
    |   |-- SourceRefusedError   Kafka answers, and will not: no such topic, no right to it
    |   |   |-- SourceLoginError     the broker or the token endpoint refuses the password
    |   |   `-- SourceTrustError     a certificate is refused
    |   `-- DataLossError        records were deleted before they were read
    |-- SinkError            6   Redis: unreachable, read-only, out of memory
    |   `-- SinkRefusedError     Redis answers, and will not: ACL, a key of another type, no Lua
    |       `-- SinkLoginError       Redis refuses the password
    |-- FencedError          7   another writer holds a newer epoch, or the lease
    |-- CheckpointError      8   the checkpoint does not fit this version or these settings, or is damaged
    |-- QueryError           9   the streaming query failed for a reason that is none of the above
    |   |-- WorkerLostError      an executor or a Python worker died, was killed or cut off
    |   |-- SparkLostError       Spark itself has ended: the JVM, or the application on the cluster
    |   `-- ExhaustedError       the process is near a limit of the system: open files, threads
    |-- SetupError          10   the machine: a port in use, no JDK, no jars, no disk
    |-- UnreadableRecordError  11   records that no process can read, and that an operator has to skip
    |-- OutletError         12   an outlet: unreachable, full, or too slow
    |   `-- OutletRefusedError   the outlet answers, and will not: a right, a table or schema that does not fit
    |       `-- OutletLoginError     the outlet refuses the password
    `-- QuestionError       13   a question in SQL that cannot be answered

`failure.transient` names those that may pass by themselves, and `failure.renewable` those that a new secret in a file ends.
A message says what happened, where (topic[partition]@offset, batch, file), which limit was reached and what to do.
"""


class TidemarkError(Exception):
    """The root: `code` for machines, `status` for the process, the text for people. A family that names neither inherits both."""

    code = "TIDEMARK"
    status = 1

    def __init_subclass__(cls, *, code: str | None = None, status: int | None = None) -> None:
        super().__init_subclass__()
        cls.code, cls.status = code or cls.code, status or cls.status

    def __init__(self, what: str, *, remedy: str = "") -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(f"{what}. {remedy}" if remedy else what)


class SettingsError(TidemarkError, code="SETTINGS", status=2):
    """Settings that cannot be used; names every problem at once."""


class SecretFileError(SettingsError):
    """The file of a password or a certificate cannot be used; it may be about to be replaced."""


class SchemaError(TidemarkError, code="SCHEMA", status=3):
    """A schema or expectations file that is missing, malformed or incompatible."""


class RegistryError(SchemaError, code="SCHEMA_REGISTRY"):
    """The schema registry does not answer."""


class ReferenceDataError(TidemarkError, code="REFERENCE", status=4):
    """Reference data that cannot be read, or that its expectations refuse."""


class ReferenceTooOldError(ReferenceDataError, code="REFERENCE_TOO_OLD"):
    """The reference in use is older than the settings allow, and there is no newer one."""


class SourceError(TidemarkError, code="SOURCE", status=5):
    """Kafka cannot be read or written as needed."""


class SourceRefusedError(SourceError, code="SOURCE_REFUSED"):
    """Kafka refuses the request: waiting does not help."""


class SourceLoginError(SourceRefusedError):
    """Kafka, or the token endpoint, refuses the password."""


class SourceTrustError(SourceRefusedError):
    """Kafka's certificate or the service's own is refused."""


class DataLossError(SourceError, code="SOURCE_DATA_LOSS"):
    """Kafka has deleted records that the query has not read."""


class SinkError(TidemarkError, code="SINK", status=6):
    """Redis did not acknowledge a write within its retries."""


class SinkRefusedError(SinkError, code="SINK_REFUSED"):
    """Redis refuses the connection or the command: waiting does not help."""


class SinkLoginError(SinkRefusedError):
    """Redis refuses the password."""


class FencedError(TidemarkError, code="FENCED", status=7):
    """A newer epoch exists: this writer must stop and never write again."""


class CheckpointError(TidemarkError, code="CHECKPOINT", status=8):
    """The checkpoint cannot be continued by this version with these settings."""


class QueryError(TidemarkError, code="QUERY", status=9):
    """The streaming query ended for a reason that no other family names."""


class WorkerLostError(QueryError, code="QUERY_WORKER_LOST"):
    """A process that worked for the query is gone."""


class SparkLostError(QueryError, code="QUERY_SPARK_LOST"):
    """Spark has ended, and this process cannot continue without it."""


class ExhaustedError(QueryError, code="QUERY_EXHAUSTED"):
    """The process has nearly as much of something as the system allows, and only a new process has less."""


class SetupError(TidemarkError, code="SETUP", status=10):
    """The machine lacks something the program needs."""


class UnreadableRecordError(TidemarkError, code="UNREADABLE", status=11):
    """Records that end every process that reads them: skip them with `tidemark skip`."""


class OutletError(TidemarkError, code="OUTLET", status=12):
    """An outlet did not take final values within its retries."""


class OutletRefusedError(OutletError, code="OUTLET_REFUSED"):
    """An outlet refuses the connection or the values: waiting does not help."""


class OutletLoginError(OutletRefusedError):
    """An outlet refuses the password."""


class QuestionError(TidemarkError, code="QUESTION", status=13):
    """A question of `tidemark sql` that cannot be answered: its text, a name in it, or too much to read."""
