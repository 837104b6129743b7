"""What is taken out of texts: the settings' secrets in all their forms, logins, and what is named like a secret."""

import json
import time
from pathlib import Path

import pytest

from service.redaction import MASK, redacted, secrets_of, stripped
from tests.minimal import settings


def test_secrets_of_the_settings_go_in_every_form_that_a_text_may_have_them_in(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('quo"te\\d\n')
    loaded = settings(
        redis={"url": "redis://me:p%40ss%2Fword@localhost"},
        kafka={"bootstrap": "b:1", "topics": ["t"], "user": "u", "password_file": str(tmp_path / "secret")},
        reference={"url": "jdbc:postgresql://db/x?user=u&password=in-the-url", "query": "q", "password": "of-the-db"},
    )
    secrets = secrets_of(loaded)
    for text in ("p%40ss%2Fword", "p@ss/word", 'quo"te\\d', json.dumps('quo"te\\d'), "in-the-url", "of-the-db"):
        assert redacted(f"a {text} b", secrets) in {f"a {MASK} b", f'a "{MASK}" b'}


def test_a_decoded_password_is_hidden_in_json_too() -> None:
    text = json.dumps({"error": 'no login with ab"cd\\ef'})
    assert json.loads(redacted(text, secrets_of(settings(redis={"url": "redis://u:ab%22cd%5Cef@h"})))) == {
        "error": f"no login with {MASK}"
    }


def test_secrets_of_outlets_are_secrets() -> None:
    database = {"kind": "jdbc", "name": "pg", "url": "jdbc:postgresql://h/d", "table": "t", "password": "of-the-db"}
    topic = {"kind": "kafka", "name": "kf", "topic": "x", "format": "json", "bootstrap": "h:1", "user": "u"}
    more = {"password": "of-kafka", "options": {"ssl.key.password": "of-the-key"}}
    loaded = settings(outlets=[database, topic | more])
    assert {"of-the-db", "of-kafka", "of-the-key"} <= set(secrets_of(loaded))


JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="fleet" password="{}";'


@pytest.mark.parametrize(
    ("name", "value", "secrets"),
    [
        ("sasl.jaas.config", JAAS.format('pa\\"ss9'), ['pa\\"ss9', 'pa"ss9']),
        ("ssl.key.password", "of-the-key", ["of-the-key"]),
        ("sasl.oauthbearer.config", "scope=read client_secret=of-oauth tokenlifetime=3600", ["of-oauth"]),
        ("client.rack", "jdbc:mysql://db/x?user=fleet&pwd=in-url", ["in-url"]),
        ("sasl.oauthbearer.assertion.private.key.passphrase", "of-the-key", ["of-the-key"]),
        ("sasl.oauthbearer.assertion.private.key.pem", "-----BEGIN X", ["-----BEGIN X"]),
        ("basic.auth.user.info", "fleet:of-basic", ["fleet:of-basic", "of-basic"]),
        ("proxy", "http://fleet:of%2Fproxy@proxy:3128", ["of%2Fproxy", "of/proxy"]),
        ("sasl.oauthbearer.token.endpoint.url", "https://h/t?x=1&api_key=in-url", ["in-url"]),
    ],
)
def test_secrets_in_the_value_of_an_option_are_hidden(name: str, value: str, secrets: list[str]) -> None:
    found = secrets_of(settings(kafka={"bootstrap": "b:1", "topics": ["t"], "options": {name: value}}))
    assert set(secrets) <= set(found)
    assert not {"fleet", "read", "3600", "proxy:3128", "https://h/t?x=1&api_key=in-url"} & set(found)


@pytest.mark.parametrize("name", ["ssl.key.location", "sasl.oauthbearer.assertion.private.key.file"])
def test_the_place_of_a_secret_is_none(name: str) -> None:
    options = {name: "/etc/tidemark/key.pem"}
    assert secrets_of(settings(kafka={"bootstrap": "b:1", "topics": ["t"], "options": options})) == []


def test_a_login_in_any_address_is_hidden_where_it_stands_alone() -> None:
    files = {"kind": "parquet", "name": "files", "path": "s3://key:of-s3@bucket/finals"}
    assert secrets_of(settings(outlets=[files])) == ["of-s3"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("password=hunter2, next", "password=***, next"),
        ("sasl.password: 'hunter 2' x", "sasl.password: '***' x"),
        ('{"ssl.key.password": "hunter2", "a": 1}', '{"ssl.key.password": "***", "a": 1}'),
        (r'{"text": "{\"api_key\": \"hunter2\"}"}', r'{"text": "{\"api_key\": \"***\"}"}'),
        ('Login required username="u" password="hunter2";', 'Login required username="u" password="***";'),
        ("private.key.passphrase=hunter2", "private.key.passphrase=***"),
        ("basic.auth.user.info=u:hunter2 x", "basic.auth.user.info=*** x"),
        ("Authorization: Bearer hunter2", "Authorization: ***"),
        ("authorization=Basic aHVudGVyMg==", "authorization=***"),
        ("http://u:hunter2@registry:8081/x", "http://***@registry:8081/x"),
        ("x -----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY----- y", "x *** y"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2 is cut off", "***"),
        ("jdbc:postgresql://h/db?password=hunter2&x=1", "jdbc:postgresql://h/db?password=***&x=1"),
        ("TIDEMARK_REDIS__PASSWORD=hunter2", "TIDEMARK_REDIS__PASSWORD=***"),
        ("spark.hadoop.fs.s3a.secret.key hunter2 x", "spark.hadoop.fs.s3a.secret.key *** x"),
        ("kafka-topics --password hunter2 --list", "kafka-topics --password *** --list"),
        (
            "redis.password_file cannot be read, nor /run/password_file = /run/x",
            "redis.password_file cannot be read, nor /run/password_file = /run/x",
        ),
        ("AccountName=a;AccountKey=hunter2;x", "AccountName=a;AccountKey=***;x"),
        ("no secrets: a=1, the password is asked for", "no secrets: ***, the password is asked for"),
        ("lag 5 records at topic readings[3]@17", "lag 5 records at topic readings[3]@17"),
    ],
)
def test_what_is_named_like_a_secret_leaves_no_machine(text: str, expected: str) -> None:
    assert stripped(text, []) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://a.blob.net/x?sv=1&sig=hunter2%3D&se=3 x", "https://a.blob.net/x?sv=1&sig=***&se=3 x"),
        (
            "GET /x?X-Amz-Signature=hunter2&X-Amz-Credential=hunter2 x",
            "GET /x?X-Amz-Signature=***&X-Amz-Credential=*** x",
        ),
        ("Cookie: tidemark=hunter2; other=hunter2\nnext", "Cookie: ***\nnext"),
        ("Set-Cookie: tidemark=hunter2; HttpOnly", "Set-Cookie: ***"),
        ('{"cookie": "a=hunter2; b=hunter2", "a": 1}', '{"cookie": "***", "a": 1}'),
        ("(b'cookie', b'tidemark=hunter2')", "(b'cookie', b'***')"),
        ("Proxy-Authorization: Negotiate hunter2", "Proxy-Authorization: ***"),
        ("jdbc:oracle:thin:me/hun@ter2@//db:1521/x", "jdbc:oracle:thin:***@//db:1521/x"),
        ("redis://me:hun/ter@2@h:1,redis://me:hunter2@g:2/0", "redis://***@h:1,redis://***@g:2/0"),
        ("http://h:8080/x@y at redis://h:6379/0 t[3]@17", "http://h:8080/x@y at redis://h:6379/0 t[3]@17"),
        ("by eyJhbGciOiJI.eyJzdWIiOiIx.c2ln at", "by *** at"),
    ],
)
def test_what_is_a_secret_by_its_form_is_in_no_log(text: str, expected: str) -> None:
    assert redacted(text, []) == stripped(text, []) == expected


def test_a_login_in_the_query_of_a_reference_is_hidden_where_it_stands_alone() -> None:
    query = "select * from dblink('host=h user=u password=of-the-query', 'select 1')"
    reference = {"url": "jdbc:oracle:thin:me/of-oracle@//h:1/x", "query": query}
    assert secrets_of(settings(reference=reference)) == ["of-the-query", "of-oracle"]


def test_json_stays_json(tmp_path: Path) -> None:
    document = {"password": "x, y", "deep": {"token": ["a"], "error": 'secret="q"'}, "url": "redis://a:b@c", "n": None}
    assert json.loads(stripped(json.dumps(document), []))["password"] == MASK


def test_long_lines_take_little_time() -> None:
    began = time.monotonic()
    pieces = (
        "a.",
        "password",
        "password ",
        "a-b_c.d",
        '="',
        "://x:",
        "-----BEGIN PRIVATE KEY-----",
        "?x",
        "eyJaaaaaaaa.",
    )
    for piece in (*pieces, "x://" + "a:" * 250, "jdbc:oracle:" + "/" * 490):
        stripped(piece * (200_000 // len(piece)), ["secret"])
    assert time.monotonic() - began < 60
