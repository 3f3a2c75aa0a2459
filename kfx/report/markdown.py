"""REPRODUCTION.md: printed numbers beside measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kfx.report import words
from kfx.report.reproduction import CommandNumbers, Entry
from kfx.report.verdict import RULE, Verdict

_HEAD = """\
# Published numbers beside measured ones

Written by `kfx reproduce --page` from the tables in `runs/reproduction/`, and from nothing else. `kfx reproduce` says
what there is and what it costs; `kfx reproduce darcy --seeds 5` runs what is missing.
"""


def page(entries: Sequence[Entry], not_covered: Sequence[str]) -> str:
    """The whole page."""
    lines = [_HEAD, RULE, "", *_totals(entries), "", words.reproduced(entries)]
    for paper, _ in words.totals(entries):
        of_paper = [entry for entry in entries if entry.paper == paper]
        lines += ["", f"## {paper}"]
        for entry in of_paper:
            if any(part.table is not None for part in entry.parts):
                lines += ["", *_entry(entry)]
        if missing := words.missing(of_paper):
            lines += ["", f"### {paper}: not run", "", *_missing(missing)]
    if not_covered:
        lines += ["", "## Not covered", "", *(f"- {text}" for text in not_covered)]
    return "\n".join([*lines, ""])


def _totals(entries: Sequence[Entry]) -> Iterator[str]:
    yield f"| | {' | '.join(Verdict)} |"
    yield f"|---|{'---:|' * len(Verdict)}"
    for paper, counts in words.totals(entries):
        yield f"| {paper} | {' | '.join(map(str, counts))} |"


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
    yield ""
    yield "| where | what | published | measured | verdict |"
    yield "|---|---|---|---|---|"
    for item in part.items:
        measured = "; ".join(filter(None, (words.spread(item), words.fallen(item, part))))
        if measured or not part.is_reading:
            cells = words.where(item), words.what(item), words.value(item), measured, words.shown(item)
            yield f"| {' | '.join(cells)} |"


def _missing(missing: Sequence[tuple[CommandNumbers, Entry]]) -> Iterator[str]:
    yield "| command | numbers | of | would take |"
    yield "|---|---:|---|---|"
    for part, entry in missing:
        yield f"| `{part.command}` | {len(part.items)} | {words.tables(part)} | {words.cost(part, entry)} |"
