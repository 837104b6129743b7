"""`tidemark checkpoint switch`: let the service go on from another checkpoint of the same topics, and back.

A second service has made the other checkpoint, beside the service: it has a checkpoint, a prefix, a consumer group and rejects
topics of its own (docs/operator/procedures.md#rebuild-beside-the-service). Both services are stopped.

    1  take the lease of the service: none begins meanwhile
    2  refuse what only the service can finish, and a switch that would lose a record or let a count fall
    3  note in Redis that the topics are read again from behind its values        service/recompute/republish.py

Then the operator names the other folder in service.checkpoint. The next term begins as after a rebuild from Kafka: closed values
stay, and an open one stays until the new one has caught up. So no value goes back, and the former checkpoint stays as it is.
"""

from collections.abc import Callable
from contextlib import closing

from service.aggregation.sessions import longest_gap_ms
from service.checkpoint import beginnings, logs, resume
from service.commands import offline
from service.errors import CheckpointError
from service.micro_batch import MicroBatch, Offsets
from service.outlets import outbox, recomputed
from service.outlets.outbox import Outbox
from service.pipeline.command_session import started
from service.printing import counted
from service.recompute import republish
from service.redis import link
from service.rejects.fence import Fence
from service.settings import Settings
from service.spark.files import Folder, opened
from service.units import format_time


def switch(settings: Settings, folder: str, say: Callable[[str], object], *, accept: bool = False) -> None:
    """Prepare Redis for a service that goes on from the checkpoint in a folder. The settings name the present one.

    With `accept` also if views without windows lose readings, or values that are open. Raises TidemarkError; nothing is changed
    then.
    """
    with started(settings) as spark:
        used, other = opened(spark, settings.service.checkpoint), opened(spark, folder)
        prepare(settings, used, other, say, accept=accept)
    say(
        f"set service.checkpoint = {folder!r} and start the service. {settings.service.checkpoint} stays for the way back"
    )


def prepare(settings: Settings, used: Folder, other: Folder, say: Callable[[str], object], *, accept: bool) -> None:
    """Do the steps, from the checkpoint that the service has used to another one. Raises TidemarkError."""
    with offline.term(settings, say) as lease, closing(Fence(settings.redis)) as fence:
        _require_delivered(settings, used)
        _require_usable(settings, used, other, accept=accept)
        fence.check()
        offline.confirm(lease, "Nothing is changed")
        # Batch numbers of two checkpoints are not comparable: without the mark the next term could take them for one.
        republish.mark_rebuild(settings, lease.epoch)


def _require_delivered(settings: Settings, used: Folder) -> None:
    """Raise CheckpointError if the service was cut off in a batch, or outlets lack finals or corrected values."""
    was_writing = settings.outlets and any(link.progress(settings.redis, "writing"))
    if was_writing or len(set(link.progress(settings.redis, "offsets"))) > 1:
        what = "The service was cut off in a batch that some shards or outlets may have"
        raise CheckpointError(
            what, remedy="Start the service with its checkpoint, stop it in order, and repeat the command"
        )
    finals = [name for name in used.names(outbox.FOLDER) if name[:1].isdigit()]
    if settings.outlets and (left := [*finals, *recomputed.names(Outbox(used))]):
        what = f"{used}: values in {counted(len(left), 'file')} are not in every outlet"
        remedy = "Start the service, stop it when it has written them, and repeat the command"
        raise CheckpointError(what, remedy=remedy)


def _require_usable(settings: Settings, used: Folder, other: Folder, *, accept: bool) -> None:
    """Raise CheckpointError or DataLossError if the service cannot go on from another checkpoint."""
    committed = logs.committed(other)
    if committed is None:
        what = f"{other} has no committed batch"
        raise CheckpointError(what, remedy="Name the checkpoint of a service that has read the topics")
    published = link.published(settings.redis)
    if set(committed.end) != set(published):
        what = f"{other} has read {', '.join(sorted(committed.end))}, and the service {', '.join(sorted(published))}"
        raise CheckpointError(what, remedy="Let both services read the same topics")
    watermark_ms = min(int(text or 0) for text in link.progress(settings.redis, "watermark"))
    ahead = [
        f"{topic}[{partition}]@{offset}"
        for topic, each in committed.end.items()
        for partition, offset in each.items()
        if offset > published.get(topic, {}).get(partition, 0)
    ]
    if ahead or committed.watermark_ms > watermark_ms:
        what = f"{other} is ahead of what the service has published: {', '.join(ahead) or 'its watermark is'}"
        raise CheckpointError(what, remedy="Start the service, stop it when it has caught up, and repeat the command")
    resume.require_records(settings.kafka, committed.end)
    if not accept:
        _require_all_readings(settings, used, other, committed, watermark_ms)


def _require_all_readings(
    settings: Settings, used: Folder, other: Folder, committed: MicroBatch, watermark_ms: int
) -> None:
    """Raise CheckpointError if values that are not closed would lack readings that they have now."""
    remedy = "Let the second service read from an earlier time, or let readers see that with --accept"
    before, after = (beginnings.stored(files, settings.endless) for files in (used, other))
    if later := [pair for pair, from_ms in before.items() if after.get(pair, from_ms) > from_ms]:
        view, from_ms = later[0][0], after[later[0]]
        what = (
            f"The view {view}, which has no windows, would begin at {format_time(from_ms)}: its counts become smaller"
        )
        raise CheckpointError(what, remedy=remedy)
    start = MicroBatch(0, 0, 0, committed.start, {})
    from_ms = beginnings.complete_from_ms(settings.kafka, start, settings.admission.max_ahead_ms)
    lengths_ms = [view.longest_ms for view in settings.closing_views]
    open_ms = watermark_ms - max([settings.sessions.max_duration_ms + longest_gap_ms(settings), *lengths_ms])
    began_ms = beginnings.complete_from_ms(
        settings.kafka, MicroBatch(0, 0, 0, _start(used), {}), settings.admission.max_ahead_ms
    )
    if from_ms > max(open_ms, began_ms, 0):
        what = (
            f"{other} has readings from {format_time(from_ms)} on, and values may be open since {format_time(open_ms)}"
        )
        raise CheckpointError(what, remedy=remedy)


def _start(files: Folder) -> Offsets:
    committed = logs.committed(files)
    return {} if committed is None else committed.start
