"""The files of a checkpoint: what each has, when it is written and read, and what a batch that is repeated does with it.

docs/operator/checkpoint.md has the table. tests/integration/test_spark_internals.py checks that a checkpoint has no other files.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """A kind of file. In `name`, capitals and `*` stand for numbers and other names. The other fields are phrases for people."""

    name: str
    content: str
    written: str
    read: str
    replay: str


_FILES = """
metadata | Spark: id of the query | first start | start | no effect
sources/0/0 | Spark: begin of batch 0 | before batch 0 | until batch 0 is over | reads the same
offsets/N | Spark: end of batch N | before batch N | start, batches N and N + 1 | reads the same
commits/N | Spark: attempts whose state counts | after batch N | start | is repeated without it
state/* | Spark: windows, sessions, devices | in each batch | in each batch | begins with the committed one
manifest.json | what the checkpoint was made with | first start, changes | start | no effect
event_time/N | watermark after batch N | before commit N | batch N + 1 | begins with that of N - 1
event_time/N.unread | partitions with unread records | before batch N | batch N | waits for the same
event_time/ahead | that readings were ahead | before the batch's commit | recomputations | no effect
event_time/behind | that readings were behind the watermark | before the batch's commit | recomputations | no effect
rejects/begun.json | end of the rejects topics at the beginning | before batch 0 | recomputations | no effect
views/N | views from batch N on | before batch N | start | has the same views
endless/views.json | begin and end of views without windows | before the batch | start | takes back its own end
columns/values.json | values of columns that are keys | before they are published | start | decides the same
devices/N | devices of a full state | after batch N | batches after N | admits the same
distinct/B/N-E.delta | keys that batch N added | in batch N | batches after N | replaces its own
distinct/B/N-E.base | all keys after batch N | in every 32nd batch | batches after N | replaces its own
reference/current | name of the snapshot in use | after a read of the reference | start | no effect
reference/NAME.arrow | a snapshot of the reference | after a read of the reference | start, recomputations | no effect
reference/used.json | which batches used which snapshot | before the batch publishes | recomputations | replaces its own
reference/sent.json | devices of the reference that have sent | at most every minute | start, at most every minute | no effect
schemas/* | schemas of the registry, refused ids | before the batch publishes | start | refuses the same
outlets/N-NAME | finals of batch N | before progress | until all outlets have it | replaces its own
outlets/silence | values that silence has closed | between batches | start | no effect
outlets/corrected-NAME | finals of a recomputation | by the command | between batches | no effect
outlets/refused-NAME | rows that an outlet refuses | at the delivery | by people | replaces its own
outlets/term | largest epoch | start | start | no effect
backfill/* | how far a backfill is | after each part | by the command, again | no effect
starts.json | how often one batch ended the query | start and end | start | is counted
skips.json | offsets that were skipped | by `tidemark skip` | start, recomputations | is made shorter
topics.json | where topics came and left | start with other topics | start, recomputations | reads no topic that came
reshape/* | numbers of buckets before and after | by `checkpoint reshape` | start | has the new number
"""

FILES = tuple(Entry(*map(str.strip, line.split("|"))) for line in _FILES.strip().splitlines())


def table() -> str:
    """Return the table in Markdown."""
    lines = ["| file | content | written | read | a batch that is repeated |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| `{each.name}` | {' | '.join(each[1:])} |" for each in FILES]
    return "\n".join(lines) + "\n"
