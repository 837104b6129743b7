"""Nothing that a device writes acts on the terminal of who reads it."""

import json

import pytest

from load.fleet.payloads import PAGE, TERMINAL
from service.printing import document, printable, say


@pytest.mark.parametrize("payload", TERMINAL + PAGE)
def test_a_line_stays_one_line_of_plain_text(payload: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(f"device {payload} end")
    line = str(capsys.readouterr().out)
    assert line.endswith(" end\n")
    assert line.removesuffix("\n").isprintable()
    assert line.count("\n") == 1


@pytest.mark.parametrize("payload", TERMINAL + PAGE)
def test_a_document_says_the_same_and_is_plain_text(payload: str) -> None:
    line = document({"device": payload})
    assert line.isprintable()
    assert line.isascii()
    assert json.loads(line) == {"device": payload}


def test_what_is_harmless_is_printed_as_it_is() -> None:
    assert printable("S\u00fcd \u6e29\u5ea6 \U0001f321 a|b") == "S\u00fcd \u6e29\u5ea6 \U0001f321 a|b"
    assert printable("a\x1b[2Jb\n") == r"a\x1b[2Jb\n"
