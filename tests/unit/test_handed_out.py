"""Files for tasks: a name belongs to one content, and the same content is handed out once."""

from pathlib import Path
from typing import Any

from service.spark.handed_out import hand_out


class Context:
    """Spark's part: it refuses another path for a name that it has."""

    def __init__(self, application: str) -> None:
        self.applicationId = application  # Spark's name
        self.paths: dict[str, Path] = {}

    def addFile(self, text: str) -> None:  # noqa: N802 - Spark's name
        path = Path(text)
        assert self.paths.setdefault(path.name, path) == path, "already registered with a different path"


def test_two_queries_with_the_same_content_and_one_that_starts_again_hand_out_one_file() -> None:
    context: Any = Context("one")
    names = [hand_out(context, "columns", content) for content in (b"a", b"a", b"b", b"a")]
    assert len(set(names)) == 2
    assert names[0] == names[1] == names[3]
    assert [context.paths[name].read_bytes() for name in sorted(set(names), key=names.index)] == [b"a", b"b"]
    assert hand_out(context, "devices-1", b"a") != names[0]
    other: Any = Context("another application")
    assert hand_out(other, "columns", b"a") == names[0]
    assert {*other.paths} == {names[0]}
