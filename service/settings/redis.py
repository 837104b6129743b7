"""[redis]."""

import re
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from service.settings.section import HOST, NotNegative, Positive, Section

_REDIS_URL = re.compile(
    rf"rediss?://([A-Za-z0-9._~%!$&'()*+,;=:-]*@)?{HOST}(,{HOST})*(/[0-9]*)?(\?[^#\s]*)?|unix://([^@/?#\s]*@)?/[^#\s]+"
)


class Redis(Section):
    url: SecretStr
    """With `cluster`, of any nodes of a Redis Cluster, separated by commas."""
    password_file: Path | None = None
    """Replaces the password of the URL."""
    ca_file: Path | None = None
    """Certificates to trust, for rediss://; the system's when not given."""
    cluster: bool = False
    prefix: str = "tidemark"
    shards: int = Field(default=1, gt=0, le=1_024)
    """The number of stores that keys are spread over by hash tags (schemas/redis.md). A prefix keeps the number it began with."""
    feed_length: int = Field(default=10_000, gt=0)
    feed_retain_ms: Positive = Field(default=86_400_000, alias="feed_retain")
    """The change feed keeps about `feed_length` entries of up to 100 keys, and none that are much older than this."""
    timeout_ms: Positive = Field(default=5_000, alias="timeout")
    retry_for_ms: NotNegative = Field(default=30_000, alias="retry_for")
    """How long the writes of a batch are retried, with back-off, before the batch fails and is replayed."""
    chunk: int = Field(default=1_000, gt=0, le=10_000)
    driver_rows: int = Field(default=100_000, ge=0)
    """The driver publishes a batch of at most this many records; the executors publish a larger one."""

    @field_validator("url")
    @classmethod
    def _is_redis_url(cls, url: SecretStr) -> SecretStr:
        if not _REDIS_URL.fullmatch(url.get_secret_value()):  # no part of it is shown: any may be the password
            msg = (
                "must be redis://user@host:6379/0 with a port up to 65535, rediss:// for TLS, or unix:///path. In user and "
                "password, write %2F for /, and so on for all but letters, digits and -._~!$&'()*+,;=: or use password_file"
            )
            raise ValueError(msg)
        return url

    @model_validator(mode="after")
    def _suits_a_cluster(self) -> Self:
        url = urlsplit(self.url.get_secret_value())
        if self.shards > 1 and set(self.prefix) & set("{}"):
            msg = f"prefix {self.prefix!r} must not have braces: redis.shards = {self.shards} puts hash tags around it"
            raise ValueError(msg)
        if not self.cluster:
            if "," in url.netloc.rpartition("@")[2]:
                msg = "url names several hosts: set cluster = true if they are nodes of a Redis Cluster"
                raise ValueError(msg)
            return self
        if self.shards == 1 and not re.match(r"[^{]*\{[^}]+\}", self.prefix):
            msg = (
                "shards = 1 leaves a cluster one slot: choose more, such as 4 for each primary, or give prefix a hash tag, "
                f'such as "{{{self.prefix}}}"'
            )
            raise ValueError(msg)
        if url.scheme == "unix" or url.path not in {"", "/", "/0"} or "db=" in url.query:
            msg = "url must name nodes by host and port, and no database: a Redis Cluster has only 0"
            raise ValueError(msg)
        return self
