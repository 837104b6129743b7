"""`tidemark status` where no service answers: what Redis has of it, and what to look at."""

from pathlib import Path

import pytest

from load.servers.redis import Redis
from load.testbed import free_port, to_toml
from service import clock
from service.cli import main
from tests import minimal

pytestmark = pytest.mark.integration


def settings(folder: Path, url: str, prefix: str) -> Path:
    document = minimal.document(redis={"url": url, "prefix": prefix}, metrics={"port": free_port()})
    path = folder / "tidemark.toml"
    path.write_text(to_toml(document), encoding="utf-8")
    return path


def test_redis_says_when_the_last_batch_was_and_who_has_the_lease(
    redis_server: Redis, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, client = settings(tmp_path, redis_server.url, prefix), redis_server.client()
    assert main(["status", "--config", str(path)]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("tidemark: no service answers at 127.0.0.1:")
    assert "none: Redis has no progress under this prefix" in printed.out
    at = {"epoch": "7", "batch": "812", "watermark": "1790000000000", "updated": str(clock.now_ms() - 21_600_000)}
    client.hset(f"{prefix}:progress", mapping=at)
    assert main(["status", "--config", str(path)]) == 1
    text = capsys.readouterr().out
    assert "last batch  812 of epoch 7, 6 h ago (" in text
    assert "the watermark is at\n              2026-09-21T14:13:20Z" in text
    assert "nobody has it: no service runs with this prefix" in text
    assert "systemctl status tidemark" in text
    assert text.splitlines()[-1] == f"next: tidemark check --config {path}"
    client.set(f"{prefix}:lease", "host-7:4711:1:abc", px=60_000)
    assert main(["status", "--config", str(path)]) == 1
    text = capsys.readouterr().out
    assert "process 4711 on host-7 has it for " in text
    assert "look at     the service on host-7: [metrics] there" in text


def test_redis_that_is_away_too_is_named_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = settings(tmp_path, "redis://user:canary@127.0.0.1:1/0", "t")
    began_s = clock.monotonic_s()
    assert main(["status", "--config", str(path)]) == 1
    assert clock.monotonic_s() - began_s < 2
    text = capsys.readouterr().out
    assert "127.0.0.1:1/0 does not answer" in text
    assert "canary" not in text
