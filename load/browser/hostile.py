"""Devices whose ids and attributes are markup: what they send is admitted, and every page shows their names."""

import contextlib
import sqlite3
from collections.abc import Sequence
from urllib.parse import quote, urlencode

from playwright.sync_api import Page

from load.faults import raw
from load.fleet.payloads import PAGE, TERMINAL
from load.testbed import Testbed
from service.clock import now_ms

TEXTS = [each for each in TERMINAL if "\x00" not in each and each.isprintable() is False and each != "\ud800"]
"""Attributes that act on a terminal. SQLite keeps neither NUL nor half a surrogate."""

ACTIVE = """() => {
  const own = 'script[src^="/static/"], svg.glyph, svg.spark, svg.share-bar, form.search, form.search input, ' +
    'details.words, header img[src="/static/mark.svg"]';
  const tags = new Set(['script', 'iframe', 'frame', 'object', 'embed', 'video', 'audio', 'source', 'base', 'marquee', 'style',
    'form', 'input', 'img', 'svg', 'details', 'applet', 'template', 'math']);
  const addresses = new Set(['href', 'src', 'action', 'formaction', 'data', 'xlink:href', 'srcdoc', 'poster']);
  const acts = ({name, value}) => name.startsWith('on') ||
    (addresses.has(name) && /^\\s*(javascript|data|vbscript):/i.test(value));
  const is_active = each => [...each.attributes].some(acts) || each.matches('meta[http-equiv], body *[style*="expression"]') ||
    (tags.has(each.localName) && !each.matches(own)) ||
    (each.localName === 'a' && each.origin !== location.origin);
  return [...document.querySelectorAll('*')].filter(is_active).map(each => each.outerHTML.slice(0, 160));
}"""
"""The elements of a page that run something or lead elsewhere, without the page's own."""


def add_devices(testbed: Testbed) -> None:
    """Add devices whose ids are markup, and whose models are markup or act on a terminal, to the reference."""
    with contextlib.closing(sqlite3.connect(testbed.folder / "reference.db")) as database, database:
        _, kind, site, _, installed = database.execute("select * from devices limit 1").fetchone()
        models = [*PAGE, *TEXTS]
        rows = [
            (PAGE[number % len(PAGE)], kind, site, model, installed) for number, model in enumerate(models[: len(PAGE)])
        ]
        rows += [
            (f"terminal-{number}", kind, site, model, installed) for number, model in enumerate(models[len(PAGE) :])
        ]
        database.executemany("insert into devices values (?, ?, ?, ?, ?)", rows)


def send(testbed: Testbed) -> None:
    """Send a reading of each hostile device, and records that are markup, to all partitions in turn."""
    names = [*PAGE, *(f"terminal-{number}" for number in range(len(TEXTS)))]
    keys = [name.encode() for name in names]
    raw.send(testbed.broker.bootstrap, ({"value": raw.reading(key, now_ms()), "key": key} for key in keys))
    markup = zip(names, keys, strict=True)
    raw.send(testbed.broker.bootstrap, ({"value": key, "key": key, "headers": [(name, b"x")]} for name, key in markup))


def addresses() -> Sequence[str]:
    """Return the pages that show the names, and addresses that are made of them."""
    pages = ["/?" + urlencode({"q": "<"}), "/?" + urlencode({"by": "model", "groups": "all"})]
    pages += ["/view?name=model", "/view?name=device&q=%3C", "/view?" + urlencode({"name": "device", "q": PAGE[-1]})]
    for text in PAGE:
        pages.append("/device?" + urlencode({"id": text}))
    for text in (*PAGE[:4], TEXTS[0]):
        pages.append("/?" + urlencode({"f.model": text}))
        pages.append("/key?" + urlencode({"name": "model", "key": text}))
    for text in PAGE[:3]:
        pages += [f"/view?{urlencode({'name': text})}", f"/runbook/{quote(text, safe='')}", f"/{quote(text, safe='')}"]
    return pages


def active_elements(page: Page) -> list[str]:
    """Return the elements of a page that data must not create."""
    found: list[str] = page.evaluate(ACTIVE)
    return found
