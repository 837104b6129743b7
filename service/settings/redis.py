"""[redis]."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from service.settings.section import HOST, NotNegative, Positive, Section, rule

_HOSTS = rf"([A-Za-z0-9._~%!$&'()*+,;=:-]*@)?{HOST}(,{HOST})*"
_REDIS_URL = re.compile(
    rf"rediss?://{_HOSTS}(/[0-9]*)?(\?[^#\s]*)?|unix://([^@/?#\s]*@)?/[^#\s]+"
    rf"|rediss?\+sentinel://{_HOSTS}/[A-Za-z0-9._-]+(/[0-9]*)?(\?[^#\s]*)?"
)


def _is_url(url: SecretStr) -> bool:
    return _REDIS_URL.fullmatch(url.get_secret_value()) is not None


_URL = rule(  # no part of it is shown: any may be the password
    _is_url,
    "must be redis://user@host:6379/0 with a port up to 65535, rediss:// for TLS, unix:///path, or the sentinels "
    "and the primary's name, redis+sentinel://user@host1:26379,host2:26379/mymaster. In user and "
    "password, write %2F for /, and so on for all but letters, digits and -._~!$&'()*+,;=: or use password_file",
)


class Redis(Section):
    url: Annotated[SecretStr, _URL] = Field(examples=["redis://redis.example.com:6379/0"])
    """redis://user@host:6379/0, rediss:// (TLS) or unix://. The password comes from password_file or is part of the
    URL; give such a URL in TIDEMARK_REDIS__URL and not here. With `cluster`, any nodes of a Redis Cluster:
    redis://user@host1:6379,host2:6379. Where Redis Sentinel watches the primary, the sentinels and the primary's name:
    redis+sentinel://user@host1:26379,host2:26379/mymaster/0, or rediss+sentinel://.
    """
    password_file: Path | None = Field(default=None, examples=["secrets/redis.password"])
    """File with the password, read for each new connection. It replaces the URL's, and must exist on the executors'
    hosts, too. Default: none.
    """
    sentinel_password_file: Path | None = Field(default=None, examples=["secrets/sentinel.password"])
    """File with the password of the sentinels, which is not that of Redis. Default: none."""
    ca_file: Path | None = Field(default=None, examples=["redis-ca.pem"])
    """PEM file of the certificates to trust, for rediss://. Default: the system's."""
    cluster: bool = False
    """The URL is that of a Redis Cluster."""
    prefix: str = "tidemark"
    """Begins every key."""
    shards: int = Field(default=1, gt=0, le=1_024)
    """For a cluster: the stores that keys are spread over, each in one slot. About 4 for each primary that there will
    ever be; each costs a batch some calls. A prefix keeps the number it began with.
    """
    feed_length: int = Field(default=10_000, gt=0)
    """About how many entries the change feed keeps, each with at most 100 keys."""
    feed_retain_ms: Positive = Field(default=86_400_000, alias="feed_retain")
    """How long the change feed keeps an entry."""
    timeout_ms: Positive = Field(default=5_000, alias="timeout")
    """Limit of one answer."""
    retry_for_ms: NotNegative = Field(default=30_000, alias="retry_for")
    """How long the writes of a batch are retried before the service ends. The batch is replayed at the next start."""
    chunk: int = Field(default=1_000, gt=0, le=10_000)
    """Rows in one call of the script. A call is atomic, and Redis does nothing else meanwhile."""
    driver_rows: int = Field(default=30_000, ge=0)
    """The driver publishes a batch of at most this many records, the executors publish a larger one."""

    @property
    def has_sentinels(self) -> bool:
        """Whether the URL names the sentinels that know where the primary is."""
        return urlsplit(self.url.get_secret_value()).scheme.endswith("+sentinel")

    def conflicts(self) -> Iterator[str]:
        url = urlsplit(self.url.get_secret_value())
        if self.shards > 1 and set(self.prefix) & set("{}"):
            yield f"prefix {self.prefix!r} must not have braces: redis.shards = {self.shards} puts hash tags around it"
        if self.sentinel_password_file is not None and not self.has_sentinels:
            yield "sentinel_password_file is for a url of sentinels: redis+sentinel://host1:26379,host2:26379/mymaster"
        if not self.cluster:
            if "," in url.netloc.rpartition("@")[2] and not self.has_sentinels:
                yield "url names several hosts: set cluster = true if they are nodes of a Redis Cluster"
            return
        if self.shards == 1 and not re.match(r"[^{]*\{[^}]+\}", self.prefix):
            yield (
                "shards = 1 leaves a cluster one slot: choose more, such as 4 for each primary, or give prefix a hash tag, "
                f'such as "{{{self.prefix}}}"'
            )
        if self.has_sentinels:
            yield "cluster = true is not for a url of sentinels: a Redis Cluster elects its primaries by itself"
        if url.scheme == "unix" or url.path not in {"", "/", "/0"} or "db=" in url.query:
            yield "url must name nodes by host and port, and no database: a Redis Cluster has only 0"
