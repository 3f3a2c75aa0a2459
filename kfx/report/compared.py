"""The comparison of many runs as people read it: means over seeds, and which rows are not worse than the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfx.numerics.formatting import spread
from kfx.outcomes import KfxError
from kfx.record.comparison import Compared, better_in, gather, table
from kfx.report.table import Table

if TYPE_CHECKING:
    import pandas as pd

_EXPERIMENT, _N_I = "experiment", "n_interpolation"
_LEVEL = 0.05
_NOT_WORSE = "not significantly worse than the best (one-tailed t-test, 5 %, of pairs with the same seed, or Welch's)"
_TOO_FEW = "? too few seeds for a test"


def of_sweep(directories: Sequence[Path], own: Sequence[Sequence[str]]) -> Table | None:
    """The table of `kfx compare` for the completed runs, with a row for each combination of what they chose beside the
    seed; None where no two of them share one. Where runs of a row differ in more than their seed it has a remark alone.

    Runs of several experiments have a row for each, and only rows of the same N_I are compared: those stand together.
    own: the overrides of each run that not all share.
    """
    import pandas as pd

    settled = dict(zip((each.resolve() for each in directories), map(_experiment, own), strict=True))
    typed = dict.fromkeys(word.lstrip("+").partition("=")[0] for words in own for word in words)
    try:
        runs, metric, found, _ = gather(directories, None, "trained", None)
        known = {_EXPERIMENT, *(key for run in found for key in run.settings)}
        every = dict.fromkeys(known)
        found = [
            replace(run, settings={**every, **run.settings, _EXPERIMENT: settled[run.directory.resolve()]})
            for run in found
        ]
        better, sizes = better_in(runs, metric), sorted({run.settings[_N_I] for run in found})
        by = [key for key in typed if {key, f"{key}.name"} & known]
        if _EXPERIMENT in by:
            by = [_EXPERIMENT, *(key for key in by if _varies(key, found))]
        by = [*([_N_I] if len(sizes) > 1 else []), *(by or ["kernel", "optimizer"])]
        frame = table(found, by, metric, False, better)
        attrs, of_sizes = frame.attrs, [[run for run in found if run.settings[_N_I] == size] for size in sizes]
        frame = pd.concat([table(part, by, metric, False, better) for part in of_sizes], ignore_index=True)
        frame.attrs = attrs
    except KfxError as error:
        return Table([], [], remarks=[f"No means over seeds: {error}"])
    shown = shown_table(frame, by, metric, "sd")
    if shown.note and len(sizes) > 1:
        shown = replace(shown, note=shown.note.replace("the best", "the best of its N_I"))
    return shown if frame["n"].max() > 1 else None


def _experiment(words: Sequence[str]) -> str:
    return next((word.partition("=")[2] for word in words if word.lstrip("+").startswith(f"{_EXPERIMENT}=")), "")


def _varies(key: str, runs: Sequence[Compared]) -> bool:
    """Whether runs of one experiment differ in a setting."""
    keys = (key, f"{key}.name")
    pairs = {(run.settings[_EXPERIMENT], *(str(run.settings.get(name)) for name in keys)) for run in runs}
    return key != _EXPERIMENT and len(pairs) > len({pair[0] for pair in pairs})


def shown_table(frame: pd.DataFrame, by: Sequence[str], metric: str, of: str) -> Table:
    """The table as people read it. frame: of `kfx.record.comparison.table`. of: `sd`, or `se` of the means."""
    p, columns = frame[f"{metric}_p"], _columns(metric, frame)
    is_tested = bool((p < 1).any())
    marks = ["?" if math.isnan(each) else "*" if each >= _LEVEL else "" for each in p] if is_tested else []
    return Table(
        [*by, "n#", *(f"{head}#" for _, head in columns)],
        [
            [*(str(row[key]) for key in by), str(row["n"]), *(_cell(row, name, of) for name, _ in columns)]
            for row in frame.to_dict("records")
        ],
        title=f"{metric}: mean ± {of} over seeds · {frame.attrs['title']}",
        marks=marks,
        marked=len(by) + 1,
        note=_NOT_WORSE if is_tested else "",
        remarks=[_TOO_FEW] if "?" in marks else [],
    )


def _columns(metric: str, frame: pd.DataFrame) -> list[tuple[str, str]]:
    """(column, heading) of each column; the objective is shown if it is not ρ, and what training reached where
    another kernel was kept."""
    objective = [("objective_initial", "objective before"), ("objective_final", "objective after")]
    kept = [("initial_kept", "fall back"), (f"{metric}_reached", "training reached")]
    return [
        (metric, metric),
        *(kept if frame[["initial_kept", "one_length_kept", "smooth_kept"]].any(axis=None) else []),
        *(objective if frame.attrs["other_objective"] else []),
        ("rho_initial", "rho before"),
        ("rho_final", "rho after"),
        ("seconds", "seconds"),
        ("kernel_evaluations", "kernel evaluations"),
    ]


def _cell(row: dict[Any, Any], name: str, of: str) -> str:
    if name == "initial_kept":
        others = ("initial", "one_length", "smooth")
        counts = ((f"{other.replace('_', ' ')} kept", row[f"{other}_kept"]) for other in others)
        return ", ".join(f"{what} {count}/{row['fits']}" for what, count in counts if count)
    mean, deviation = row[name], row[f"{name}_{of}"]
    if name == "kernel_evaluations" and not deviation > 0 and math.isfinite(mean):
        return f"{mean:.0f}"
    return spread(mean, deviation)
