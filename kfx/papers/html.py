"""REPRODUCTION.md as HTML pages, each one self-contained file without network or scripts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby

from jinja2 import Environment

from kfx.papers import claims, words
from kfx.papers.claims import Tested
from kfx.papers.numbers import Entry, Notes
from kfx.papers.verdict import RULE, Verdict
from kfx.report.html import templates

_MAIN = "reproduction.html"


def reproduction(entries: Sequence[Entry], tested: Sequence[Tested], notes: Notes) -> dict[str, str]:
    """Return the pages by file name: the claims, and the numbers of each paper."""
    ordered = sorted(entries, key=lambda entry: entry.paper)
    pages = {
        _MAIN: _render(
            _MAIN,
            title="What the papers claim, and what holds",
            tested=tested,
            claims_rules=[rule.replace("*", "") for rule in claims.RULES],
            rule=RULE.replace("*", ""),
            verdicts=list(Verdict),
            totals=words.totals(entries),
            entries=entries,
            notes=notes,
        )
    }
    for paper, of_paper in groupby(ordered, key=lambda entry: entry.paper):
        title = f"{paper}: published numbers, and those measured"
        pages[_page_of(paper)] = _render("reproduction_paper.html", title=title, entries=list(of_paper))
    return pages


def _render(template: str, **content: object) -> str:
    return _templates().get_template(template).render(**content)


@cache
def _templates() -> Environment:
    made = templates("kfx.papers")
    made.filters |= {"anchor": _anchor, "page_of": _page_of}
    made.globals["words"] = words
    return made


def _anchor(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())


def _page_of(paper: str) -> str:
    return f"reproduction-{_anchor(paper)}.html"
