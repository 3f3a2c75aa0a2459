"""Names and number formats of the pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kfx.papers.claims import Condition, Measured, Outcome, Standing, Tested
from kfx.papers.numbers import YES_OR_NO, CommandNumbers, Entry, Item
from kfx.papers.tables import Command
from kfx.papers.verdict import RANKED, Verdict
from kfx.report.naming import described

_VISIBLE = 1e-4
"""Relative deviation below which the pages leave it out."""


def what(item: Item) -> str:
    """The metric with its statistic and N_I."""
    return described(item.printed)


def where(item: Item) -> str:
    """The table or figure and the row, without the paper."""
    return item.printed.source.partition(", ")[2]


def value(item: Item) -> str:
    """The number as printed, with its deviation."""
    if item.printed.text is None:
        return "–"
    return item.printed.text + (f" ± {item.deviation}" if item.deviation else "")


def spread(item: Item) -> str:
    """Mean ± standard deviation over seeds, with as many decimals as printed; for a curve with four digits."""
    return _of_seeds(item.measured, item)


def spread_of(measured: Sequence[float], text: str | None) -> str:
    """Mean ± standard deviation of measurements, with as many decimals as `text`; empty where nothing is measured."""
    if not measured:
        return ""
    mean = float(np.mean(measured))
    decimals = None if text is None else len(text.partition(".")[2])
    shown = f"{mean:.4g}" if decimals is None or "e" in str(text).lower() else f"{mean:.{decimals}f}"
    return shown + (f" ± {np.std(measured, ddof=1):.2g}" if len(measured) > 1 else "")


def reading(item: Item) -> str:
    """What the reading by which the command is judged measured; empty where it did not."""
    return "" if item.reading is None else _of_seeds(item.reading.measured, item)


def _of_seeds(measured: Sequence[float], item: Item) -> str:
    if item.printed.metric in YES_OR_NO and len(measured) > 1:
        return f"in {sum(measured):.0f} of {len(measured)} seeds"
    return spread_of(measured, item.printed.text)


def agreement(part: CommandNumbers) -> str:
    """How many of a command's numbers agree with the printed ones, and by which reading; empty for a reading."""
    if part.is_reading or not part.compared:
        return ""
    by = f", read as `{_change(part.judged_by, part.command)}`" if part.judged_by else ""
    return f"{part.agreeing} of {len(part.compared)} numbers agree{by}"


def _change(command: Command, of: Command) -> str:
    """The overrides that a command has and another has not, and the other's whose keys it has not."""
    more = [word for word in command.overrides if word not in of.overrides]
    keys = {word.partition("=")[0] for word in command.overrides}
    less = [word for word in of.overrides if word.partition("=")[0] not in keys]
    return ", ".join(filter(None, [" ".join(more), f"without {' '.join(less)}" if less else ""]))


def measured(item: Item, part: CommandNumbers) -> str:
    """What was measured, and for a curve by what factor it falls."""
    return "; ".join(filter(None, (spread(item), _fallen(item, part))))


def _fallen(item: Item, part: CommandNumbers) -> str:
    """The factor by which a curve's quantity falls from the initial to the trained kernel: geometric mean over
    seeds."""
    printed = item.printed
    if item.printed.text is not None or printed.kernel != "trained" or len(item.measured) < 3:
        return ""
    for other in part.items:
        if other.printed.place == (printed.metric, "initial", *printed.place[2:]):
            assert part.table is not None  # else nothing is measured
            untrained, trained = part.table.by_seed(other.printed), part.table.by_seed(printed)
            if untrained.keys() == trained.keys() and min(*untrained.values(), *trained.values()) > 0:
                factors = np.array([untrained[seed] / trained[seed] for seed in trained])
                mean, least, most = np.exp(np.log(factors).mean()), factors.min(), factors.max()
                times = f"falls in {int((factors > 1).sum())} of {len(factors)} seeds"
                return f"{times}, by {mean:.3g} ({least:.2g} to {most:.2g})"
    return ""


def shown(item: Item) -> str:
    """The verdict, if there is one; a verdict on one seed says so."""
    if item.verdict is Verdict.NONE:
        return ""
    measured = item.measured if item.reading is None else item.reading.measured
    return f"{item.verdict}{', one seed' if len(measured) == 1 and item.verdict in RANKED else ''}"


def missing(entries: Sequence[Entry]) -> list[tuple[CommandNumbers, Entry]]:
    """The commands that have not been run."""
    return [(part, entry) for entry in entries for part in entry.parts if part.table is None]


def tables(part: CommandNumbers) -> str:
    """The tables and figures of a command's numbers."""
    return ", ".join(dict.fromkeys(where(item).split(",")[0] for item in part.items))


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def cost(part: CommandNumbers, entry: Entry) -> str:
    """The time of a run: measured, or that of similar runs, or from the remark."""
    if part.table is not None:
        return duration(part.table.seconds())
    if entry.remark.takes:
        return entry.remark.takes
    siblings = [each.table.seconds() for each in entry.parts if each.table is not None and not each.is_reading]
    return f"about {duration(max(siblings))}, as its siblings" if siblings else "unknown"


def made_on(part: CommandNumbers) -> str:
    """Iterations, time, seeds, machine and version of a command that was run."""
    assert part.table is not None
    rows, count = part.table.rows, len(part.table.seeds)
    dates = sorted({row["date"] for row in rows})
    parts = [
        f"{rows[0]['iterations']} iterations",
        f"{duration(part.table.seconds())} a run",
        f"{count} seed{'s' if count > 1 else ''}",
        "; ".join(dict.fromkeys(row["machine"] for row in rows)),
        f"kfx {', '.join(sorted({row['kfx'] for row in rows}))}",
        dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
    ]
    return " · ".join(parts)


def reproduced(entries: Sequence[Entry]) -> str:
    """Sentences on the reproduced numbers: those of untrained or of interpolating kernels prove little."""
    found = [
        item
        for entry in entries
        for part in entry.parts
        if not part.is_reading
        for item in part.items
        if item.verdict is Verdict.REPRODUCED
    ]
    untrained = sum(item.printed.kernel == "initial" for item in found)
    zero = sum(
        each.value == 0 and each.kernel == "trained" and each.metric.startswith("train_")
        for each in (item.printed for item in found)
    )
    left = len(found) - untrained - zero
    by_reading = sum(item.reading is not None for item in found)
    return (
        f"Of the {len(found)} reproduced numbers, {untrained} belong to an untrained kernel, and {zero} are training "
        f"errors of an interpolating kernel, published as 0; {left} are left. {by_reading} are reproduced by another "
        "reading of the text than the first."
    )


def totals(entries: Sequence[Entry]) -> list[tuple[str, list[int]]]:
    """The number of printed numbers with each verdict, for each paper, in the order of `Verdict`."""
    found: dict[str, list[int]] = {}
    for entry in entries:
        counts = entry.counts()
        row = found.setdefault(entry.paper, [0] * len(Verdict))
        for i, each in enumerate(Verdict):
            row[i] += counts[each]
    return sorted(found.items())


CLAIM_COUNTS = [*Standing, "tested on one seed"]
"""What is counted of each paper's claims."""


def standings_by_paper(tested: Sequence[Tested]) -> list[tuple[str, list[int]]]:
    """The numbers named by `CLAIM_COUNTS` for each paper."""
    papers = dict.fromkeys(each.paper for each in tested)
    counts = Counter((each.paper, each.standing) for each in tested)
    single = Counter(each.paper for each in tested if _seeds(each) and max(_seeds(each)) == 1)
    return [(paper, [*(counts[paper, kind] for kind in Standing), single[paper]]) for paper in papers]


def standings(tested: Sequence[Tested]) -> str:
    """A sentence with the number of claims by verdict."""
    counts = Counter(each.standing for each in tested)
    shown = [f"{counts[kind]} {_PLURAL[kind]}" for kind in Standing if counts[kind]]
    return f"Of {len(tested)} claims {', '.join(shown)}."


_PLURAL = {
    Standing.HOLDS: "hold",
    Standing.PARTLY: "hold partly",
    Standing.FAILS: "do not hold",
    Standing.UNDECIDED: "are undecided",
    Standing.NOT_RUN: "were not run",
}


def place(tested: Tested) -> str:
    """The section, table or figure of a claim, without the paper."""
    return tested.claim.source.partition(", ")[2]


def standing(tested: Tested) -> str:
    """The verdict on a claim; it says if it rests on one seed, or on some of the conditions."""
    seeds, all_of = _seeds(tested), len(tested.outcomes)
    if not seeds:
        return str(tested.standing)
    few = "" if min(seeds) > 1 else f", one seed{'' if max(seeds) == 1 else ' in part'}"
    return f"{tested.standing}{few}" + (
        f", {len(seeds)} of {all_of} conditions measured" if len(seeds) < all_of else ""
    )


def _seeds(tested: Tested) -> list[int]:
    """The number of seeds of each measured condition; empty for a claim that was not run."""
    if tested.standing is Standing.NOT_RUN:
        return []
    return [len(outcome.holds) for outcome in tested.outcomes if outcome.holds]


def evidence(tested: Tested) -> list[str]:
    """The paper's words, what was measured for each condition of a claim, then the reason; commands stand in
    backticks."""
    lines = [f"“{tested.claim.quote}”"] if tested.claim.quote else []
    for command in dict.fromkeys(outcome.condition.measured_by for outcome in tested.outcomes):
        own = dict.fromkeys(_outcome(each) for each in tested.outcomes if each.condition.measured_by == command)
        lines.append(f"`{command}`: {'; '.join(own)}")
    if not tested.outcomes and tested.claim.command:
        lines.append(f"`{tested.claim.command}`")
    unprinted = tested.claim.unprinted and f"Not printed: {tested.claim.unprinted}."
    return [*lines, *filter(None, [unprinted, tested.claim.reason])]


def _outcome(outcome: Outcome) -> str:
    """A condition with its measurements, such as `σ = 2.1 ± 0.03, near 2: in 5 of 5 seeds`."""
    condition, other = outcome.condition, outcome.condition.other
    named = f"{condition.run}: {condition}" if condition.study else str(condition)
    control = "control: " if condition.control else ""
    if not outcome.holds:
        return f"{control}{named} not measured"
    count = len(outcome.holds)
    seeds = f"in {sum(outcome.holds)} of {count} seeds" if count > 1 else ("yes" if outcome.holds[0] else "no")
    if condition.relation == "equals":
        return f"{control}{'' if condition.equals else 'not '}{named}: {seeds}"
    relation = condition.relation.replace("_", " ")
    if isinstance(other, float):
        return f"{control}{named} = {_compact(outcome.left)}, {relation} {other:g}: {seeds}"
    factor = "" if other.times == 1 else f"{other.times:g} × "
    right = f"{factor}{_compact([value / other.times for value in outcome.right])} ({_unlike(other, condition)})"
    return f"{control}{named} = {_compact(outcome.left)}, {relation} {right}: {seeds}"


def _unlike(other: Measured, condition: Condition) -> str:
    """The settings of the other quantity that differ from the condition's."""
    parts = []
    if other.metric != condition.metric:
        parts.append(described(replace(other, n_interpolation=None)))
    elif other.kernel != condition.kernel:
        parts.append("before training" if other.kernel == "initial" else "after training")
    if other.n_interpolation not in (None, condition.n_interpolation):
        parts.append(f"N_I {other.n_interpolation}")
    if other.study:
        parts += [other.run] if other.run != condition.run else []
    elif other.command.experiment != condition.command.experiment:
        parts.append(str(other.command))
    elif other.command != condition.command:
        parts.append(_change(other.command, condition.command))
    return ", ".join(parts)


def _compact(values: Sequence[float]) -> str:
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{mean:.4g}" + (f" ± {deviation:.2g}" if deviation > _VISIBLE * abs(mean) else "")
