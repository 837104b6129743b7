"""Commands about views: list, add, change, remove."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli.command import Config, DryRun, Json, app, command, group
from service.cli.output import say_all
from service.printing import document, say

views = group("views", app, "List the views, and change them while the service runs.", "Views")

_File = Annotated[
    Path,
    typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="TOML with [[views]], as in the settings."),
]


@command(views, "list", example="tidemark views list")
def list_views(config: Config, json: Json = False) -> None:
    """List the views of the running service, or of the settings."""
    from service import settings
    from service.commands import views

    loaded = settings.load(config)
    found = views.listed(loaded, settings.name_of(loaded, config))
    for line in [document(found)] if json else views.table(found):
        say(line)


@command(views, "add", example="tidemark views add by_site.toml")
def add(config: Config, file: _File, dry_run: DryRun = False) -> int:
    """Add views to the settings file and to the running service, which computes their past from Kafka."""
    from service import settings
    from service.commands import views

    return _changed(config, views.add(config, settings.read(file)), dry_run=dry_run)


@command(views, "change", example="tidemark views change device.toml")
def change(config: Config, file: _File, dry_run: DryRun = False) -> int:
    """Change views of the same names. Another window, slide, column or filter is a new version, which is computed first."""
    from service import settings
    from service.commands import views

    return _changed(config, views.change(config, settings.read(file)), dry_run=dry_run)


@command(views, "remove", example="tidemark views remove by_site")
def remove(config: Config, name: Annotated[str, typer.Argument(metavar="NAME")], dry_run: DryRun = False) -> int:
    """Remove a view. Its keys expire by its retain."""
    from service.commands import views

    return _changed(config, views.remove(config, name), dry_run=dry_run)


def _changed(config: Path, text: str, *, dry_run: bool) -> int:
    from service import settings
    from service.commands import views

    if dry_run:
        say_all([text])
        return 0
    views.write(config, text)
    loaded = settings.load(config)
    return views.tell(loaded, say, settings.name_of(loaded, config))
