"""REPRODUCTION.md: claims of papers and whether they hold, then published numbers with measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kfx.papers import claims, words
from kfx.papers.claims import Tested
from kfx.papers.numbers import CommandNumbers, Entry, Notes
from kfx.papers.verdict import RULE, Verdict

_HEAD = """\
# What the papers claim, and what holds

This page repeats the experiments of five papers with kfx, a program for Kernel Flows. First come the claims of four of
them, each with a verdict and the measurements behind it, then all published numbers of the five with those measured.
`kfx reproduce darcy --seeds 5` runs every experiment of a paper that is missing, with seeds 0 to 4; `kfx reproduce
--page` writes this page from the tables in `runs/reproduction/`.
"""


def page(entries: Sequence[Entry], tested: Sequence[Tested], notes: Notes) -> str:
    """Return the whole page."""
    lines = [_HEAD, *_claims(tested), "", "## Published numbers", "", RULE, "", *_totals(entries)]
    lines += ["", words.reproduced(entries)]
    for paper, _ in words.totals(entries):
        of_paper = [entry for entry in entries if entry.paper == paper]
        lines += ["", f"## {paper}: all numbers"]
        for entry in of_paper:
            if any(part.table is not None for part in entry.parts):
                lines += ["", *_entry(entry)]
        if missing := words.missing(of_paper):
            lines += ["", f"### {paper}: not run", "", *_missing(missing)]
    for title, texts in notes.items():
        lines += ["", f"## {title}", "", *(f"- {text}" for text in texts)]
    return "\n".join([*lines, ""])


def _claims(tested: Sequence[Tested]) -> Iterator[str]:
    yield words.standings(tested)
    yield ""
    yield _row(["claims", *words.CLAIM_COUNTS])
    yield f"|---|{'---:|' * len(words.CLAIM_COUNTS)}"
    for paper, counts in words.standings_by_paper(tested):
        yield _row([paper, *map(str, counts)])
    yield ""
    yield from (f"- {rule}" for rule in claims.RULES)
    for paper in dict.fromkeys(each.paper for each in tested):
        yield ""
        yield f"### {paper}: claims"
        yield ""
        yield "| claim | where | verdict | evidence |"
        yield "|---|---|---|---|"
        for each in tested:
            if each.paper == paper:
                evidence = "<br>".join(words.evidence(each, "`"))
                cells = each.claim.claim, words.place(each), words.standing(each), evidence
                yield _row(cells)


def _totals(entries: Sequence[Entry]) -> Iterator[str]:
    yield f"| | {' | '.join(Verdict)} |"
    yield f"|---|{'---:|' * len(Verdict)}"
    for paper, counts in words.totals(entries):
        yield _row([paper, *map(str, counts)])


def _entry(entry: Entry) -> Iterator[str]:
    yield f"### {entry.experiment}"
    yield ""
    yield entry.description
    for part in entry.parts:
        if part.table is not None:
            yield ""
            yield from _part(part)
    if entry.remark.why:
        yield ""
        yield entry.remark.why


def _part(part: CommandNumbers) -> Iterator[str]:
    yield f"`{part.command}`{' (another reading)' if part.is_reading else ''}  "
    yield words.made_on(part)
    if part.changed:
        yield f"  \nStale: measured with other settings (then, now): {'; '.join(part.changed[:3])}"
    by_readings = any(item.reading is not None for item in part.items)
    yield ""
    yield f"| where | what | published | measured |{' best reading |' if by_readings else ''} verdict |"
    yield f"|---|---|---|---|{'---|' if by_readings else ''}---|"
    for item in part.items:
        measured = "; ".join(filter(None, (words.spread(item), words.fallen(item, part))))
        if measured or not part.is_reading:
            reading = [words.reading(item, part)] if by_readings else []
            cells = words.where(item), words.what(item), words.value(item), measured, *reading, words.shown(item)
            yield _row(cells)


def _missing(missing: Sequence[tuple[CommandNumbers, Entry]]) -> Iterator[str]:
    yield "| command | numbers | of | would take |"
    yield "|---|---:|---|---|"
    for part, entry in missing:
        yield _row([f"`{part.command}`", str(len(part.items)), words.tables(part), words.cost(part, entry)])


def _row(cells: Sequence[str]) -> str:
    """A row of a table; the cells are Markdown in which only a bar, of a command for example, would end a cell."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', '∣') for cell in cells)} |"
