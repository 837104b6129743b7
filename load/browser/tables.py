"""What a page shows, read from its elements: tables by row, facts by name, times by their attribute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from playwright.sync_api import Page

_TABLE = """(selector) => {
  const text = node => {
    const copy = node.cloneNode(true);
    copy.querySelectorAll('.tip-text, .unit, .hidden').forEach(each => each.remove());
    return copy.textContent.replace(/\\s+/g, ' ').trim();
  };
  const ms = node => [...node.querySelectorAll('time')].map(each => Date.parse(each.dateTime));
  const table = document.querySelector(selector);
  if (!table) return [];
  const heads = [...table.tHead.rows[0].cells].map(text);
  return [...table.tBodies[0].rows].map(row => [row.dataset.key || '',
    Object.fromEntries([...row.cells].map((cell, i) => [heads[i], [text(cell), ms(cell)]]))]);
}"""

_FACTS = """(selector) => Object.fromEntries([...document.querySelectorAll(`${selector} dl > div`)].map(div => {
  const copy = div.cloneNode(true);
  copy.querySelectorAll('.tip-text, .unit, .at').forEach(each => each.remove());
  const text = node => node.textContent.replace(/\\s+/g, ' ').trim();
  return [text(copy.querySelector('dt')),
    [text(copy.querySelector('dd')), [...div.querySelectorAll('time')].map(each => Date.parse(each.dateTime))]];
}))"""


@dataclass(frozen=True)
class Cell:
    """The text of a cell without units and tooltips, and the times in it, in ms."""

    text: str
    times: tuple[int, ...] = ()

    @property
    def number(self) -> float | None:
        """The number that the text is; None for a dash, an escape or words."""
        text = self.text.replace(",", "").replace("\u2212", "-").replace("\u2013", "")
        try:
            return float(text.removesuffix("%"))
        except ValueError:
            return None


Row = Mapping[str, Cell]


def table(page: Page, selector: str) -> dict[str, Row]:
    """Return the rows of a table by their keys, as cells by the texts of their headings; {} when there is no such table."""
    return {key: _cells(cells) for key, cells in page.evaluate(_TABLE, selector)}


def facts(page: Page, selector: str) -> Row:
    """Return what the lists of facts below an element say, by name."""
    return _cells(page.evaluate(_FACTS, selector))


def _cells(found: Mapping[str, Sequence[object]]) -> dict[str, Cell]:
    return {name: Cell(str(text), tuple(times)) for name, (text, times) in found.items()}  # type: ignore[arg-type]


def same(cell: Cell, held: str | float | None) -> bool:
    """Whether a cell shows a number of Redis: to two decimals, or to four digits where it is very large or small."""
    if held is None or held == "":
        return cell.text == "\u2013"
    value, shown = float(held), cell.number
    if shown is None:
        return False
    if "e" in cell.text:
        return abs(shown - value) <= 5e-4 * abs(value)
    return abs(shown - value) <= 0.005 + 1e-9 * abs(value)
