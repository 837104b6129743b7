"""The examples about shards, run as they stand in the pages, on one Redis and on a cluster."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from stores import T0, Stores

from tidemark_client import Client

ROOT = Path(__file__).parents[3]
SECTION = "\n## Shards and Redis Cluster\n"


def examples(page: Path, **given: Any) -> "dict[str, Any]":
    """What the section's examples define."""
    section = page.read_text(encoding="utf-8").partition(SECTION)[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert blocks
    exec("\n".join(blocks), given)  # noqa: S102 - our own documentation
    return given


@pytest.mark.parametrize("stores", ["cluster"], indirect=True)
def test_the_readme_connects_to_a_cluster(stores: Stores) -> None:
    made = examples(ROOT / "clients" / "python" / "README.md", Client=Client)
    with made["connect_to_cluster"](stores.options["url"]) as client:
        assert client.meta().shards == stores.shards


def test_the_page_for_application_developers_finds_a_keys_shard(stores: Stores) -> None:
    made = examples(ROOT / "docs" / "application-developer.md", client=stores.redis, json=json)
    number = made["shards"]()
    assert number == stores.shards
    with Client.from_url(**stores.options) as client:
        for name in [*stores.names(2), "leeds", "j\u00e4ger", "123456789"]:
            stores.window(name, T0)
            fields = stores.redis.hgetall(f"{made['prefix_of'](name, number)}:window:site:power:{name}:{T0}")
            found = client.current("site", name)
            assert found is not None
            assert (float(fields["mean"]), int(fields["count"])) == (found.mean, found.count)
    for shard in range(stores.shards):
        stores.redis.delete(f"{stores.prefix(shard)}:meta")
    with pytest.raises(LookupError, match="has not written its first batch"):
        made["shards"]()
