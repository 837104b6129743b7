"""What each reader of a password's file says of a file that is not UTF-8: its name, and none of its bytes."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from service.admission import registry
from service.errors import ReferenceDataError, SettingsError
from service.kafka.options import librdkafka
from service.redis.client import _PasswordFile
from service.reference.database import _options
from service.settings import Kafka, Redis, Reference
from service.settings.settings import Registry
from tidemark_sql import question


def kafka(secret: Path) -> object:
    return librdkafka(Kafka(bootstrap="b:1", topics=("t",), user="u", password_file=secret))


def reference(secret: Path) -> object:
    return _options(Reference(url="jdbc:postgresql://h/d", query="q", user="u", password_file=secret))


def of_registry(secret: Path) -> object:
    return registry.connect(Registry(url="http://h", user="u", password_file=secret))


def by_sql(secret: Path) -> object:
    return question._client(Redis.model_validate({"url": "redis://h", "password_file": secret}), 2.0)


def by_redis(secret: Path) -> object:
    return _PasswordFile(None, secret).get_credentials()


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (kafka, SettingsError),
        (reference, ReferenceDataError),
        (of_registry, OSError),  # service/admission/registry.py makes a RegistryError of each problem
        (by_sql, SettingsError),
        (by_redis, redis.ConnectionError),
    ],
)
def test_a_password_file_that_is_not_utf_8_is_named(
    read: Callable[[Path], object], error: type[Exception], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"p\xe4ss-w\xf6rd")
    with pytest.raises(error, match="the file is not UTF-8 text") as caught:
        read(secret)
    assert str(secret) in str(caught.value)
    assert "ss-w" not in "".join(traceback.format_exception(caught.value))


def test_the_mark_with_which_some_editors_begin_a_file_is_no_part_of_the_password(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"\xef\xbb\xbfpassword\r\n")
    assert _PasswordFile(None, secret).get_credentials() == ("password",)
