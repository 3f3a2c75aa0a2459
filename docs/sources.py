"""The tables behind the numbers of the pages: for each source, what it says to a question.

A question is what a comment of a page has behind the source's name (docs/pages.py). A source answers with a number, a
number and its standard deviation, or a text, such as a table; with KeyError or ValueError to a question that its
tables do not answer.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
REPRODUCTION = ROOT / "runs" / "reproduction"
sys.path.append(str(ROOT / "scripts"))

Found = float | tuple[float, float] | str


def forecasts(question: str) -> Found:
    """`systems`, `METHOD`, `mean of METHOD` or `METHOD better than METHOD`, on runs/forecasts/gilpin.csv with 100
    points a period: how many systems, the median and the mean sMAPE, on how many systems the first has the smaller."""
    rows = _csv("runs/forecasts/gilpin.csv").query("points == 100")
    found = rows.pivot_table(index="system", columns="method", values="smape").dropna()
    if question == "systems":
        return len(found)
    if " better than " in question:
        first, second = question.split(" better than ")
        return int((found[first] < found[second]).sum())
    if question.startswith("mean of "):
        return float(found[question.removeprefix("mean of ")].mean())
    return float(found[question].median())


def tables(question: str) -> Found:
    """`COMPARISON, METHOD[, COLUMN]`: of a method of a comparison of runs/tables/, its mean rank or another column of
    `table_page.summary`."""
    import table_page

    comparison, method, *column = question.split(", ")
    return float(table_page.summary(comparison).loc[method, column[0] if column else "rank"])


def performance(question: str) -> Found:
    """`WORK[ against PEER], COLUMN` of the newest row of docs/performance.csv, where columns are also kfx_s, `ratio`
    and its inverse `slower`, and `least_ms` and `most`, the time at the limit and the ratio there; or the tables
    `newest` and `cnngp`."""
    rows = _csv("docs/performance.csv").drop_duplicates(["work", "peer"], keep="last")
    rows = rows.assign(kfx_s=rows["kfx_ms"] / 1e3, ratio=rows["peer_ms"] / rows["kfx_ms"])
    rows = rows.assign(slower=1 / rows["ratio"], least_ms=rows["limit"] * rows["kfx_ms"])
    rows = rows.assign(most=rows["peer_ms"] / rows["least_ms"])
    if question == "newest":
        return _newest(rows)
    if question == "cnngp":
        return _cnngp(rows.set_index("work"))
    named, _, column = question.rpartition(", ")
    work, _, peer = named.partition(" against ")
    return float(rows[(rows["work"] == work) & ((rows["peer"] == peer) | (peer == ""))][column].iloc[0])


def reproduction(question: str) -> Found:
    """`EXPERIMENT [OVERRIDES], KERNEL METRIC [from N_I]`: mean and deviation over the seeds of a table in
    runs/reproduction/; or the table `features`. Errors are in %."""
    if question == "features":
        return _features()
    command, _, asked = question.rpartition(", ")
    values = _of_command(command, asked)
    return float(values.mean()), float(values.std(ddof=1))


def claims(question: str) -> Found:
    """How many claims of papers there are `in all`, or have a verdict."""
    from kfx.papers import claims as papers

    counts = Counter(each.standing for each in papers.tested(papers.read(REPRODUCTION), _measurements()))
    return counts.total() if question == "in all" else counts[papers.Standing(question)]


def published(question: str) -> Found:
    """How many published numbers there are `in all`, have a verdict, or are `measured, not reproduced`; or the verdict
    on the one number of an experiment."""
    from kfx.papers.verdict import Verdict

    if "/" in question:
        ((said, _),) = _counts(question).items()
        return str(said)
    counts = _counts()
    if question == "in all":
        return counts.total()
    if question == "measured, not reproduced":
        return counts.total() - sum(counts[each] for each in (Verdict.REPRODUCED, Verdict.NOT_RUN, Verdict.NONE))
    return counts[Verdict(question)]


def images(question: str) -> Found:
    """The tables `accuracies` and `gains` of scripts/compare_pooled.py, or by how many standard errors its accuracies
    are `farthest` from the published ones."""
    import compare_pooled as pooled

    return {"accuracies": pooled.table, "gains": pooled.gains, "farthest": pooled.farthest}[question]()


def wins(question: str) -> Found:
    """`METHOD from N_I, COLUMN` of the table of scripts/where_rho_wins.py on runs/criteria/where_rho_wins.csv; with
    COLUMN `error`, mean and deviation over seeds, in %."""
    import where_rho_wins

    method, column = question.rsplit(", ", 1)
    name, count = method.rsplit(" from ", 1)
    row = where_rho_wins.table(where_rho_wins.recorded("mnist", 500)).loc[(name, int(count))]
    return (float(row["error"]), float(row["deviation"])) if column == "error" else float(row[column])


def cell(question: str) -> Found:
    """`PAGE, ROW, COLUMN`: a cell of a table of another page or section, where the row is the first cell, or the first
    two with a blank between."""
    page, row, column = question.split(", ")
    found = []
    for table in re.findall(r"^\|.*\n\|[-:| ]+\|\n(?:\|.*\n)+", (ROOT / page).read_text(), re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        if column in head:
            found += [each[head.index(column)] for each in rows if row in (each[0], " ".join(each[:2]))]
    if len(found) != 1:
        raise ValueError(f"{len(found)} cells, expected one")
    return found[0]


def study(question: str) -> Found:
    """`NAME; KEY=VALUE; …; COLUMN`: a cell of the table of a study in runs/reproduction/studies/, in its only row with
    these values; or the tables `NAME; table`, a row for each of the study's, `NAME; summary`, a row for each criterion,
    and
    `NAME; parts`, a row for each part of the settings (`trained parts`: with λ trained)."""
    name, *conditions, column = question.split("; ")
    rows = _csv(f"runs/reproduction/studies/{name}.csv")
    if column in _STUDY_TABLES:
        return _STUDY_TABLES[column](rows)
    for key, _, value in (condition.partition("=") for condition in conditions):
        rows = rows[rows[key].astype(str) == value]
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} rows, expected one")
    return rows[column].iloc[0] if isinstance(rows[column].iloc[0], str) else float(rows[column].iloc[0])


SOURCES: dict[str, Callable[[str], Found]] = {
    each.__name__: each
    for each in (forecasts, tables, performance, reproduction, claims, published, images, wins, cell, study)
}


@cache
def _csv(path: str) -> pd.DataFrame:
    return pd.read_csv(ROOT / path)


def _newest(rows: pd.DataFrame) -> str:
    """The newest row of each work and peer."""
    of = ", ".join(sorted({f"{row.machine}, {row.date}" for row in rows.itertuples()}))
    lines = [f"| work ({of}) | kfx ms | peer | peer ms | ratio | share of the limit |", "|---|---:|---|---:|---:|---:|"]
    for row in rows.itertuples():
        peer = "" if pd.isna(row.peer) else row.peer
        limit = "" if pd.isna(row.limit) else f"{100 * row.limit:.0f} %"
        cells = [row.work, _short(row.kfx_ms), peer, _short(row.peer_ms), _short(row.ratio), limit]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _short(value: float) -> str:
    """Three digits, and all of those before the point; nothing for a missing number."""
    return "" if pd.isna(value) else f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def _cnngp(rows: pd.DataFrame) -> str:
    lines = ["| network | dtype | µs an entry | share of the limit | value and gradient |", "|---|---|---:|---:|---:|"]
    for network in ("simple", "convnet", "resnet"):
        for dtype in ("float32", "float64"):
            value = f"CNNGP {network}, N = 600, {dtype}: value"
            alone, both = rows.loc[value], rows.loc[f"{value}, gradient to two"]
            cells = f"{1e3 * alone.kfx_ms / 600**2:.2f} | {100 * alone.limit:.0f} % | {1 / both.ratio:.1f} ×"
            lines.append(f"| {network} | {dtype} | {cells} |")
    return "\n".join(lines)


def _of_command(command: str, asked: str) -> pd.Series:
    """The measurements of `KERNEL METRIC [from N_I]`, one for each seed; an error in %, where no table has it from the
    accuracy."""
    from kfx.papers.tables import Command

    experiment, *overrides = command.split()
    asked, _, n = asked.partition(" from ")
    kernel, metric = asked.split()
    rows = _csv(f"runs/reproduction/{Command(experiment, tuple(sorted(overrides))).name}.csv")
    rows = rows[(rows["kernel"] == kernel) & (rows["statistic"] == "mean")].dropna(subset="measured")
    rows = rows[rows["n_interpolation"].fillna(-1) == float(n or -1)]
    found = rows[rows["metric"] == metric]["measured"]
    if metric in ("error", "head_error"):
        right = rows[rows["metric"] == metric.replace("error", "accuracy")]["measured"]
        found = 100 * (found if len(found) else 1 - right)
    if found.empty:
        raise ValueError(f"{command}, {asked}: not measured")
    return found


_LESSON = (
    "dataset.preprocess=[mean_norm] kernel.architecture=mnist_300 kernel.weights=truncated optimizer.decay=0.032258 "
    "optimizer.learning_rate=0.0031 optimizer.period=2000 optimizer.schedule=exponential"
)
_FEATURES = {
    "ρ": "",
    "e₂": "objective=interpolation_error",
    "ρ, lesson": _LESSON,
    "e₂, lesson": f"{_LESSON} objective=interpolation_error",
    "ρ, lesson with dropout": f"{_LESSON} kernel.dropout=0.25",
    "e₂, lesson with dropout": f"{_LESSON} kernel.dropout=0.25 objective=interpolation_error",
    "cross-entropy": "evaluation.n_interpolation=[10,60,600,6000,12000] objective=cross_entropy",
}


def _features() -> str:
    """Errors of owhadi_yoo/mnist_network: mean and deviation over seeds, a row for each way of training."""
    lines = ["| trained on | seeds | $N_I$ = 10 | 60 | 600 | 6000 | 12 000 | 30 000 |", "|---|---:|" + "---|" * 6]
    for name, overrides in _FEATURES.items():
        cells, seeds = [], 0
        for n in (10, 60, 600, 6000, 12000, 30000):
            if name == "cross-entropy" and n == 30000:
                cells.append("-")
                continue
            errors = _of_command(f"owhadi_yoo/mnist_network {overrides}", f"trained error from {n}")
            seeds = len(errors)
            cells.append(f"{errors.mean():.2f}" + (f" ± {errors.std(ddof=1):.2f}" if seeds > 1 else ""))
        lines.append(f"| {name} | {seeds} | {' | '.join(cells)} |")
    return "\n".join(lines)


_DATED = ["date", "kfx", "machine"]
_WAYS = {"tiny": "λ tiny", "leave_one_out": "λ by leave-one-out", "trained": "λ trained"}


def _criteria(rows: pd.DataFrame) -> list[str]:
    return [name for name in rows if name not in ("lambda", "part", "settings", *_DATED)]


def _summary(rows: pd.DataFrame) -> str:
    """A row for each criterion: regret ± standard error for each way to λ, and of the second the share of settings in
    which it is best, coverage; and what training costs."""
    found = rows.set_index([rows["lambda"].fillna(""), "part"])[_criteria(rows)].T
    costs = [part for part in ("evaluations", "seconds") if ("", part) in found]
    head = [
        "criterion",
        *_WAYS.values(),
        "among the best in %",
        "coverage in %",
        *("ms" if c == "seconds" else c for c in costs),
    ]
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for name, own in found.sort_values(("leave_one_out", "all")).iterrows():
        regrets = [(own[way, "all"], own[way, "standard error"]) for way in _WAYS]
        cells = ["-" if pd.isna(mean) else f"{mean:.1f} ± {error:.1f}" for mean, error in regrets]
        for part in ("among the best in %", "coverage in %"):
            share = own["leave_one_out", part]
            cells.append("-" if pd.isna(share) else f"{share:.0f}")
        cells += [f"{own['', part] * (1e3 if part == 'seconds' else 1):.0f}" for part in costs]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _parts(rows: pd.DataFrame, way: str = "leave_one_out") -> str:
    """Mean regret of each criterion for one way to λ, a row for each part of the settings."""
    of_way = rows[rows["lambda"] == way]
    names = [name for name in _criteria(rows) if of_way[name].notna().any()]
    own = of_way[of_way["part"].str.match(r"all$|(?:model is|truth|model|collection|d|n|noise) ")]
    lines = [f"| settings | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for _, row in own.iterrows():
        least = row[names].min()
        cells = [f"**{value:.1f}**" if value == least else f"{value:.1f}" for value in row[names]]
        lines.append(f"| {row['part']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _whole(rows: pd.DataFrame) -> str:
    shown = rows.drop(columns=_DATED)
    lines = [
        f"| {' | '.join(shown)} |",
        "|" + "".join("---:|" if pd.api.types.is_numeric_dtype(kind) else "---|" for kind in shown.dtypes),
    ]
    for row in shown.itertuples(index=False):
        cells = ["" if value != value else value if isinstance(value, str) else f"{value:.4g}" for value in row]
        lines.append(f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} |")
    return "\n".join(lines)


_STUDY_TABLES = {"table": _whole, "summary": _summary, "parts": _parts, "trained parts": partial(_parts, way="trained")}


@cache
def _measurements() -> Any:
    from kfx.papers import claims as papers

    return papers.measurements(REPRODUCTION)


@cache
def _counts(experiment: str | None = None) -> Counter:
    """How many published numbers have each verdict, of all experiments or of one."""
    from kfx.papers.numbers import gather

    entries = gather(REPRODUCTION, None if experiment is None else [experiment], is_checked=False)
    return sum((entry.counts() for entry in entries), Counter())
