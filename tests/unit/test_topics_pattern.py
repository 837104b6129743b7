"""`topics_pattern`: which topics it adds, to which input, and what it refuses."""

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from service.daemon.session_parts import SessionParts
from service.errors import SettingsError, SourceRefusedError
from service.kafka import clients, matching
from service.settings import Settings, parse

TOPICS = [
    "plant-a",
    "plant-b",
    "plant-b.rejects",
    "plant-b.rejects.applied",
    "__consumer_offsets",
    "old",
    "plant-finals",
]


def settings(kafka: dict[str, Any], **sections: Any) -> Settings:
    document = {
        "service": {"checkpoint": "/c"},
        "kafka": {"bootstrap": "k:1", **kafka},
        "redis": {"url": "redis://r"},
        "views": [{"name": "total", "window": "1 m", "measures": []}],
        **({} if "inputs" in sections else {"input": {"format": "json"}}),
    }
    return parse({**document, **sections})


@pytest.mark.parametrize(
    ("kafka", "read"),
    [
        ({"topics_pattern": "plant-[ab]"}, ("plant-a", "plant-b")),
        ({"topics_pattern": "lant"}, ()),
        ({"topics_pattern": "plant-(a|b)", "topics": ["plant-b"]}, ("plant-b", "plant-a")),
        ({"topics_pattern": "(?s).*", "rejects": "{topic}.bad"}, ("old", *sorted({*TOPICS} - {"old", TOPICS[4]}))),
        ({"topics_pattern": ".*", "topics": ["old"]}, ("old", "plant-a", "plant-b", "plant-finals")),
        ({"topics": ["old"]}, ("old",)),
    ],
)
def test_a_pattern_adds_topics_by_their_complete_name(kafka: dict[str, Any], read: tuple[str, ...]) -> None:
    assert matching.matched(settings(kafka), TOPICS).kafka.topics == read


def test_topics_of_rejects_of_outlets_and_of_kafka_itself_are_not_read() -> None:
    outlet = {"name": "finals", "kind": "kafka", "topic": "plant-finals", "format": "json"}
    found = matching.matched(settings({"topics_pattern": ".*"}, outlets=[outlet]), TOPICS)
    assert found.kafka.topics == ("old", "plant-a", "plant-b")


@pytest.mark.parametrize(
    ("rejects", "names", "read"),
    [
        ("{topic}.rejects", ["b.rejects.bad", "b.rejects.bad.rejects.bad"], ("b.rejects.bad",)),
        ("dlq.{topic}", ["bad.dlq.b", "bad.dlq.bad.dlq.b"], ("bad.dlq.b",)),
        ("{topic}.r", ["plant.room.rack", "b.r.x.r.x"], ("plant.room.rack",)),
        ("{topic}.rejects", ["l" * 233, "m" * 234], ("l" * 233,)),
    ],
)
def test_a_topic_without_rejects_is_not_read(rejects: str, names: list[str], read: tuple[str, ...]) -> None:
    given = settings({"topics_pattern": ".*", "rejects": rejects})
    assert matching.matched(given, names).kafka.topics == read


def test_a_topic_is_of_the_input_that_names_it_else_of_the_first_that_matches() -> None:
    inputs = [
        {"name": "one", "format": "json", "topics_pattern": "plant-.*", "measures": {"t": "t"}},
        {"name": "two", "format": "json", "topics": ["plant-a"], "topics_pattern": ".*", "measures": {"t": "t"}},
    ]
    given = settings({}, inputs=inputs)
    assert (given.kafka.topics, given.kafka.topics_pattern) == (("plant-a",), "(?:plant-.*)|(?:.*)")
    found = matching.matched(given, TOPICS)
    assert [form.topics for form in found.inputs] == [("plant-b", "plant-finals"), ("plant-a", "old")]
    assert found.kafka.topics == ("plant-b", "plant-finals", "plant-a", "old")
    assert [each.kafka.topics for each in found.split()] == [form.topics for form in found.inputs]
    assert matching.matched(found, [*TOPICS, "plant-c"]).inputs[0].topics == ("plant-b", "plant-finals", "plant-c")


@pytest.mark.parametrize(
    ("kafka", "problem"),
    [
        ({"topics_pattern": "("}, "kafka.topics_pattern = '(': '(' is no regular expression of RE2: missing ): "),
        ({"topics_pattern": r"(a)\1"}, "is no regular expression of RE2"),
        ({"topics_pattern": " "}, "it is blank"),
        ({"topics": []}, "kafka.topics: needs at least 1 entry, has 0"),
        ({"topics_pattern": "a.*", "starting": {"b": {"0": 1}}}, "starting: b is not among the topics"),
        ({"topics": [f"t{n}" for n in range(2049)]}, "topics: has 2049 topics, the limit is 2048"),
        ({}, "kafka.topics: is missing and has no default"),
    ],
)
def test_what_is_no_pattern_is_refused(kafka: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        settings(kafka)
    assert problem in str(error.value)


def test_a_pattern_beside_inputs_is_refused() -> None:
    inputs = [{"name": "one", "format": "json", "topics": ["a"], "measures": {"t": "t"}}]
    with pytest.raises(SettingsError, match=r"kafka\.topics_pattern: is given beside"):
        settings({"topics": ["a"], "topics_pattern": "b"}, inputs=inputs)


def test_without_a_pattern_nothing_is_asked_of_kafka() -> None:
    given = settings({"topics": ["a"]})
    assert matching.resolved(given) is given


def many(count: int) -> list[str]:
    return [f"plant-{number:04}" for number in range(count)]


def test_a_service_goes_on_with_its_topics_while_there_is_no_room_for_new_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A restart of the process is refused: it has no topics that it reads."""
    given = settings({"topics_pattern": "plant-.*"})
    names = many(2_048)
    admin = SimpleNamespace(list_topics=lambda **_: SimpleNamespace(topics=dict.fromkeys(names)))
    monkeypatch.setattr(clients, "admin", lambda _: admin)
    read = matching.resolved(given)
    assert len(read.kafka.topics) == 2_048
    names = many(2_050)
    assert matching.resolved(given, read) is read
    with pytest.raises(SourceRefusedError, match="2050 topics match, the limit is 2048"):
        matching.resolved(given)

    parts = SessionParts.__new__(SessionParts)  # without Spark
    unread: list[int] = []
    parts.settings, parts.has_new_topics, parts._unread = read, threading.Event(), 0
    parts.metrics = SimpleNamespace(topics_unread=SimpleNamespace(set=unread.append))
    with caplog.at_level(logging.INFO):
        for names in (many(2_050), many(2_050), many(2_051), many(2_048)):
            parts.listed(names)
    warnings = [each.getMessage() for each in caplog.records]
    assert unread == [2, 2, 3, 0]
    assert len(warnings) == 2, "one for each number"
    assert "2 new topics match topics_pattern and are not read: plant-2048, plant-2049. With the 2048" in warnings[0]
    assert not parts.has_new_topics.is_set()
    parts.settings = matching.matched(given, many(9))
    parts.listed(many(10))
    assert parts.has_new_topics.is_set(), "there is room"
