"""The runbook and the exit statuses: Tidemark's own documents, which are part of the package."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from urllib.parse import quote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

RUNBOOK, REFERENCE = "runbook.md", "operator-reference.md"


@cache
def text(name: str) -> str:
    """A document of the package."""
    return (files("tidemark_dashboard") / "data" / name).read_text(encoding="utf-8")


@cache
def alerts() -> dict[str, tuple[str, str]]:
    """Each alert with its meaning and with what to do, in Markdown."""
    rows = re.findall(r"^\| `(Tidemark\w+)` \| (.+?) \| (.+) \|$", text(RUNBOOK), re.MULTILINE)
    return {name: (meaning, remedy) for name, meaning, remedy in rows}


@cache
def codes() -> dict[str, tuple[str, str]]:
    """Each code of an error with its row of the table, without the code, and with what to do."""
    page = section("Exit statuses", REFERENCE)
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", page, re.MULTILINE)
    remedies: dict[str, str] = {}
    for item in re.split(r"^- (?=`)", page, flags=re.MULTILINE)[1:]:
        named, _, remedy = item.partition(": ")
        for code in re.findall(r"`(\w+)`", named):
            remedies[code] = " ".join(remedy.split("\n\n")[0].split())
    return {
        code: (f"Exit status {status}: {row.split(' | ')[0]}", remedies.get(code, "")) for status, code, row in rows
    }


def section(title: str, name: str = RUNBOOK) -> str:
    """The text below a heading, up to the next one of its level or above; "" without such a heading."""
    match = re.search(rf"^(##+) {re.escape(title)}\n(.*?)(?=^##? |^\1 |\Z)", text(name), re.MULTILINE | re.DOTALL)
    return match[2].strip() if match else ""


@cache
def anchors() -> dict[str, str]:
    """The headings of the runbook by their anchors."""
    titles = re.findall(r"^#+ (.+)$", text(RUNBOOK), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"): title for title in titles}


@cache
def answer(name: str) -> Markup | None:
    """What to do about an alert or a code, as HTML; None for an unknown name. A heading of the runbook is a name, too."""
    if name in alerts():
        meaning, remedy = alerts()[name]
        elsewhere = re.fullmatch(r"\[[^\]]+\]\(#([\w-]+)\)", remedy)
        more = section(anchors()[elsewhere[1]]) if elsewhere else section(name)
        parts = [f"**Meaning**: {meaning}.", "" if elsewhere else f"**What to do**: {remedy}.", more]
        return html("\n\n".join(parts), name)
    if name in codes():
        meaning, remedy = codes()[name]
        return html(f"**Meaning**: {meaning}\n\n**What to do**: {remedy}", name)
    title = anchors().get(name)
    return html(section(title), name) if title and section(title) else None


def title(name: str) -> str:
    """What a page of the runbook is called."""
    return anchors().get(name, name) if name not in alerts() and name not in codes() else name


def html(markdown: str, name: str = "") -> Markup:
    """Markdown of our own documents as HTML, without raw HTML; a link leads to a page here or is named as a document.

    The name of an alert or a code leads to its page, but on the page `name` itself.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    for token in tokens:
        if token.children:
            token.children = _named(_links(token.children), name)
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704 - rendered with html=False, from the package


def _links(children: list[Token]) -> list[Token]:
    made: list[Token] = []
    document = ""
    for token in children:
        if token.type == "link_open":
            target = str(token.attrGet("href") or "")
            path, _, anchor = target.partition("#")
            if not path and anchor in anchors():
                named = anchors()[anchor]
                token.attrSet("href", f"/runbook/{quote(named if named in alerts() else anchor)}")
                document = ""
            elif path.endswith("operator-reference.md") and anchor == "exit-statuses":
                token.attrSet("href", "/runbook#exit-statuses")
                document = ""
            else:
                document = f" ({path.removeprefix('../')}{', ' + anchor.replace('-', ' ') if anchor else ''})"
                continue
        elif token.type == "link_close" and document:
            made.append(Token("text", "", 0, content=document))
            document = ""
            continue
        made.append(token)
    return made


def _named(children: list[Token], own: str) -> list[Token]:
    """The tokens with a link around each name of an alert or a code."""
    made: list[Token] = []
    depth = 0
    for token in children:
        depth += (token.type == "link_open") - (token.type == "link_close")
        is_name = token.type == "code_inline" and token.content != own
        if is_name and not depth and (token.content in alerts() or token.content in codes()):
            opened = Token("link_open", "a", 1, attrs={"href": f"/runbook/{quote(token.content)}"})
            made += [opened, token, Token("link_close", "a", -1)]
        else:
            made.append(token)
    return made
