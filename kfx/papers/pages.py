"""The page of claims and published numbers, REPRODUCTION.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from jinja2 import Environment

from kfx.papers import words
from kfx.papers.claims import Tested
from kfx.papers.numbers import Entry, Notes
from kfx.papers.verdict import Verdict
from kfx.report.html import templates


def markdown(entries: Sequence[Entry], tested: Sequence[Tested], notes: Notes) -> str:
    """Return REPRODUCTION.md: claims and whether they hold, then published numbers with measured ones."""
    return (
        _templates()
        .get_template("reproduction.md")
        .render(
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
    made.filters |= {"paragraphs": _paragraphs, "row": _row}
    made.globals["words"] = words
    return made


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, each in one line."""
    return [" ".join(each.split()) for each in str(text).strip().split("\n\n")]


def _row(cells: Iterable[object]) -> str:
    """A row of a table; the cells are Markdown in which only a bar, of a command for example, would end a cell."""
    return f"| {' | '.join(' '.join(str(cell).split()).replace('|', '∣') for cell in cells)} |"
