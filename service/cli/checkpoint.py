"""Commands about the checkpoint: verify, show, init, and skip."""

from typing import Annotated

import typer

from service.cli.command import Config, DryRun, app, command, group
from service.printing import say

checkpoint = group("checkpoint", app, "Look at service.checkpoint, or prepare it.")


@command(checkpoint, "verify", example="tidemark checkpoint verify --config tidemark.toml")
def verify(config: Config) -> int:
    """Read every file and all of the state; nothing is written."""
    from service import settings
    from service.commands import progress, verify
    from service.errors import CheckpointError
    from service.spark import session

    loaded = settings.load(config)
    spark = session.build(loaded, master="local[*]")
    try:
        with progress.bar("files") as watch:
            report = verify.verify(spark, loaded, watch)
    finally:
        spark.stop()
    for line in report.lines():
        say(line)
    return CheckpointError.status if report.damage else 0


@command(checkpoint, "show", example="tidemark checkpoint show --config tidemark.toml")
def show(config: Config) -> None:
    """Show the manifest."""
    _manifest(config, is_init=False, dry_run=False)


@command(checkpoint, "init", example="tidemark checkpoint init --dry-run --config tidemark.toml")
def init(config: Config, dry_run: DryRun = False) -> None:
    """Write the manifest of a checkpoint without one."""
    _manifest(config, is_init=True, dry_run=dry_run)


def _manifest(config: Config, *, is_init: bool, dry_run: bool) -> None:
    from service import settings
    from service.checkpoint import resume
    from service.spark import session

    loaded = settings.load(config)
    spark = session.build(loaded, master="local[*]")
    try:
        manifest = resume.init(spark, loaded, dry=dry_run) if is_init else resume.show(spark, loaded)
        for line in manifest.encode().decode().splitlines():
            say(line)
    finally:
        spark.stop()


@command(app, "skip", example="tidemark skip --dry-run readings:2:1207-1210")
def skip(
    config: Config,
    offsets: Annotated[
        list[str], typer.Argument(metavar="TOPIC:PARTITION:OFFSET[-OFFSET]", help="Both ends are included.")
    ],
    dry_run: DryRun = False,
) -> None:
    """Give up offsets that the service has named as unreadable, and nothing else."""
    from service import settings
    from service.commands import skip

    skip.skip(settings.load(config), offsets, say, dry=dry_run)
