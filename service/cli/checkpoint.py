"""Commands about the checkpoint: verify, show, init, reshape, switch, and skip."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.command import Config, DryRun, app, command, group, load
from service.printing import say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from service.checkpoint.manifest import Manifest
    from service.settings import Settings

checkpoint = group("checkpoint", app, "Look at service.checkpoint, or prepare it.", "Repair")


@command(checkpoint, "verify", example="tidemark checkpoint verify --config tidemark.toml")
def verify(config: Config) -> int:
    """Read every file and all of the state; nothing is written."""
    from service.commands import progress, verify
    from service.errors import CheckpointError

    loaded = load(config)
    with _spark(loaded, "read the state") as spark, progress.bar("files") as watch:
        report = verify.verify(spark, loaded, watch)
    for line in report.lines():
        say(line)
    return CheckpointError.status if report.damage else 0


@command(checkpoint, "show", example="tidemark checkpoint show --config tidemark.toml")
def show(config: Config) -> None:
    """Show the manifest. A checkpoint on a local disk is read without Spark."""
    from service import settings
    from service.checkpoint import manifest
    from service.spark import files

    loaded = settings.load(config)
    folder = files.local(loaded.service.checkpoint)
    if folder is not None:
        _print(manifest.shown(files.Local(folder)))
        return
    from service.checkpoint import resume

    with _spark(loaded, "read the checkpoint", is_brief=True) as spark:
        _print(manifest.shown(resume.files_of(spark, loaded)))


@command(checkpoint, "init", example="tidemark checkpoint init --dry-run --config tidemark.toml")
def init(
    config: Config,
    dry_run: DryRun = False,
    remove_values: Annotated[
        bool,
        typer.Option("--remove-values", help="Remove all values from Redis: the new checkpoint publishes them again."),
    ] = False,
) -> None:
    """Write the manifest of a checkpoint without one."""
    from service.checkpoint import resume

    loaded = load(config)
    with _spark(loaded, "write the checkpoint") as spark:
        _print(resume.init(spark, loaded, dry=dry_run))
    if remove_values:
        from service.commands import remove_values as values

        values.remove_values(loaded, say, dry=dry_run)


@command(checkpoint, "reshape", example="tidemark checkpoint reshape --buckets 8")
def reshape(
    config: Config,
    buckets: Annotated[int | None, typer.Option(metavar="N", help="The number of buckets.")] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The number of shuffle partitions: one for each bucket, at most 16, by default."
        ),
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Go back, if no batch was committed since.")] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Remove what --undo needs.")] = False,
) -> None:
    """Change sessions.buckets of a checkpoint while the service is stopped; the state stays."""
    from service import settings
    from service.commands import reshape

    if [buckets is not None, undo, forget].count(True) != 1 or (partitions is not None and buckets is None):
        raise typer.BadParameter("give --buckets N, perhaps with --partitions N, or --undo, or --forget")
    loaded = settings.load(config)
    target = None if buckets is None else reshape.Target.of(buckets, partitions)
    with reshape.reshaping(loaded, say) as reshaping:
        if target is not None:
            reshaping.to(target)
        elif undo:
            reshaping.back()
        else:
            reshaping.forget()


@command(checkpoint, "switch", example="tidemark checkpoint switch /var/lib/tidemark/second")
def switch(
    config: Config,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="The checkpoint of the second service.")],
    accept: Annotated[bool, typer.Option("--accept", help="Also if open values or counts lack readings.")] = False,
) -> None:
    """Let the stopped service go on from another checkpoint of the same topics, or back."""
    from service.commands import switch

    switch.switch(load(config), folder, say, accept=accept)


@contextmanager
def _spark(settings: "Settings", why: str, *, is_brief: bool = False) -> "Iterator[SparkSession]":
    """Start Spark, and stop it with the block. A terminal shows why the command waits."""
    from service.commands import progress
    from service.pipeline.command_session import started

    with ExitStack() as stack:
        with progress.waiting(f"Spark starts, to {why}"):
            master = "local[1]" if is_brief else "local[*]"
            spark = stack.enter_context(started(settings, master=master, is_brief=is_brief))
        yield spark


def _print(manifest: "Manifest") -> None:
    for line in manifest.encode().decode().splitlines():
        say(line)


@command(app, "skip", panel="Repair", example="tidemark skip --dry-run 'readings[2]@1207-1210'")
def skip(
    config: Config,
    offsets: Annotated[
        list[str],
        typer.Argument(
            metavar="PLACE...", help="TOPIC[PARTITION]@OFFSET or TOPIC[PARTITION]@FIRST-LAST, both ends included."
        ),
    ],
    dry_run: DryRun = False,
) -> None:
    """Give up offsets that the service has named as unreadable, and nothing else."""
    from service.commands import skip

    skip.skip(load(config), offsets, say, dry=dry_run)
