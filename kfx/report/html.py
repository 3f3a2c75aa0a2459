"""HTML pages, each one self-contained file without network or scripts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined

from kfx.report import words
from kfx.report.reproduction import Entry
from kfx.report.verdict import RULE, Verdict


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
    made.filters["anchor"] = lambda text: "".join(c if c.isalnum() else "-" for c in text.lower())
    made.globals["words"] = words
    return made


def render(template: str, **content: object) -> str:
    """Fill a template with content."""
    return _templates().get_template(template).render(**content)


def reproduction(entries: Sequence[Entry], not_covered: Sequence[str]) -> str:
    """REPRODUCTION.md as an HTML page."""
    ordered = sorted(entries, key=lambda entry: entry.paper)
    return render(
        "reproduction.html",
        title="Published numbers beside measured ones",
        rule=RULE.replace("*", ""),
        verdicts=list(Verdict),
        totals=words.totals(entries),
        entries=entries,
        papers=[(paper, list(of)) for paper, of in groupby(ordered, key=lambda entry: entry.paper)],
        not_covered=not_covered,
    )
