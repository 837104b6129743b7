"""What a testbed says of a service."""

from pathlib import Path

from load.testbed import last_words

OWN = "tidemark: FENCED: another writer has taken over"


def test_the_last_words_are_the_service_s_own_even_if_spark_writes_after_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_words(log) == ""
    log.write_text("WARN StateStore: first\nWARN StateStore: second\n")
    assert last_words(log) == "WARN StateStore: second"
    log.write_text(f"tidemark: SINK: an earlier end\nINFO once more\n{OWN}\nWARN StateStore: after it\n")
    assert last_words(log) == OWN
