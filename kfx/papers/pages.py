"""The pages of published numbers and claims: REPRODUCTION.md, and the same in HTML, without network or scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby

from jinja2 import Environment

from kfx.papers import words
from kfx.papers.claims import Tested
from kfx.papers.numbers import Entry, Notes
from kfx.papers.verdict import Verdict
from kfx.report.html import templates


def markdown(entries: Sequence[Entry], tested: Sequence[Tested], notes: Notes) -> str:
    """Return REPRODUCTION.md: claims and whether they hold, then published numbers with measured ones."""
    return _main("reproduction.md", entries, tested, notes)


def html(entries: Sequence[Entry], tested: Sequence[Tested], notes: Notes) -> dict[str, str]:
    """Return the same as HTML pages by file name: the claims, and the numbers of each paper."""
    pages = {"reproduction.html": _main("reproduction.html", entries, tested, notes)}
    for paper, of_paper in groupby(sorted(entries, key=lambda entry: entry.paper), key=lambda entry: entry.paper):
        template = _templates().get_template("reproduction_paper.html")
        title = f"{paper}: published numbers, and those measured"
        pages[_page_of(paper)] = template.render(title=title, entries=list(of_paper))
    return pages


def _main(template: str, entries: Sequence[Entry], tested: Sequence[Tested], notes: Notes) -> str:
    return (
        _templates()
        .get_template(template)
        .render(
            title="What the papers claim, and what holds",
            entries=entries,
            tested=tested,
            notes=notes,
            totals=words.totals(entries),
            verdicts=list(Verdict),
        )
    )


@cache
def _templates() -> Environment:
    made = templates("kfx.papers")
    made.filters |= {"anchor": _anchor, "page_of": _page_of, "paragraphs": _paragraphs, "row": _row}
    made.globals["words"] = words
    return made


def _anchor(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())


def _page_of(paper: str) -> str:
    return f"reproduction-{_anchor(paper)}.html"


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, each in one line."""
    return [" ".join(each.split()) for each in str(text).strip().split("\n\n")]


def _row(cells: Iterable[object]) -> str:
    """A row of a table; the cells are Markdown in which only a bar, of a command for example, would end a cell."""
    return f"| {' | '.join(' '.join(str(cell).split()).replace('|', '∣') for cell in cells)} |"
