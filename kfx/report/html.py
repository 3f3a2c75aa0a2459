"""HTML pages, each one self-contained file without network or scripts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined

from kfx.report import claims, words
from kfx.report.claims import Tested
from kfx.report.reproduction import Entry, Notes
from kfx.report.verdict import RULE, Verdict

_MAIN = "reproduction.html"


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("kfx.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["anchor"] = _anchor
    made.filters["page_of"] = _page_of
    made.globals["words"] = words
    return made


def _anchor(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())


def _page_of(paper: str) -> str:
    return f"reproduction-{_anchor(paper)}.html"


def render(template: str, **content: object) -> str:
    """Fill a template with content."""
    return _templates().get_template(template).render(**content)


def reproduction(entries: Sequence[Entry], tested: Sequence[Tested], notes: Notes) -> dict[str, str]:
    """Return the content of REPRODUCTION.md as HTML pages by file name: the claims, and the numbers of each paper."""
    ordered = sorted(entries, key=lambda entry: entry.paper)
    pages = {
        _MAIN: render(
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
        pages[_page_of(paper)] = render("reproduction_paper.html", title=title, entries=list(of_paper))
    return pages
