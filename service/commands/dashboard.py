"""Serve the dashboard page: hand over to the package tidemark-dashboard, with what the settings say of Redis and the service."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from service.commands import extra
from service.monitoring import pages, status
from service.settings.settings import Settings
from service.settings.several import name_of


def serve(settings: Settings, config: Path, words: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status. `words` are options of `tidemark-dashboard`, which come last.

    Raises SetupError when the package is not installed.
    """
    return int(extra.command("dashboard").main([*options(settings, config), *words]))


def options(settings: Settings, config: Path) -> list[str]:
    """Return the options of `tidemark-dashboard` that follow from the settings in `config`.

    Without the user and the password of the settings: they may write, and the page only reads.
    """
    redis = settings.redis
    url = redis.url.get_secret_value()
    netloc = urlsplit(url).netloc
    # geturl() makes unix:/path of unix:///path.
    place, _, query = url.replace(netloc, netloc.rpartition("@")[2], 1).partition("?")
    kept = "&".join(each for each in query.split("&") if each.partition("=")[0] not in {"username", "password"})
    found = ["--redis", f"{place}?{kept}" if kept else place, "--prefix", redis.prefix]
    if settings.metrics.port:  # else nobody knows which port the service has
        found += ["--service", f"http://{pages.address(settings.metrics)}{status.query(name_of(settings, config))}"]
    rejects = [sys.executable, "-P", "-m", "service.cli", "rejects", "list", "--config", str(config.absolute())]
    found += ["--rejects", shlex.join(rejects)]
    found += ["--cluster"] if redis.cluster else []
    return found + (["--ca-file", str(redis.ca_file)] if redis.ca_file else [])
