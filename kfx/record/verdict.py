"""What training changed, in words made from a run's numbers; no test stands behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kfx.files import Document, TableRow
from kfx.numerics.formatting import number
from kfx.outcomes import Status
from kfx.record.columns import REJECTED
from kfx.record.findings import Findings
from kfx.record.reading import Run, read_table


def verdict(run: Run, beside: Sequence[tuple[str, float]] = (), points: str = "") -> str:
    """One sentence: what training did to the test error or accuracy, and what other predictors have.

    beside: names and values of these predictors, in the same metric. points: how many training points they are fitted
    to, which may be more than N_I. Empty for a run that did not complete, or without
    an evaluation of both kernels.
    """
    found = Findings.of(run.metrics)
    pair = found.pair(found.at()) if run.metrics["status"] == Status.COMPLETED else None
    if pair is None or any(row["mean"] is None or not math.isfinite(row["mean"]) for row in pair):
        return ""
    before, after = (float(row["mean"]) for row in pair)
    count, repeats = points_tested(run), pair[1]["repeats"]
    several = "folds" if run.config.evaluation.name == "k_fold" else "repeats"
    sizes = [place.n_interpolation for place in found.places(found.metric)]
    where = [f"at N_I {max(sizes)}"] if len(set(sizes)) > 1 else []
    where += [f"the mean over {repeats} {several}"] if repeats > 1 else []
    did = _what_training_did(run, found, before, after)
    where += [kept] if (kept := _kept_in(run)) else []
    where += [f"on {count} test point{'s' if count > 1 else ''}"] if count and "test point" not in did else []
    said = ", ".join([did, *where])
    others = ", ".join(f"{name} {'has ' if i == 0 else ''}{number(value)}" for i, (name, value) in enumerate(beside))
    fitted = f", from all {points} training points" if others and points else ""
    return f"{said}{'; ' if others else ''}{others}{fitted}."


def _what_training_did(run: Run, found: Findings, before: float, after: float) -> str:
    metric, kept = found.metric, run.metrics.get("fall_back", {})
    if before == after and kept.get("initial_kept", 0) == kept.get("fits"):
        reached = found.row(kernel=REJECTED)
        had = f", where training reached {number(reached['mean'])}" if reached is not None else ""
        why = "the untrained kernel has smaller errors at points left out"
        return f"What training reached was discarded, because {why}: the test {metric} stays {number(before)}{had}"
    if before == after:
        if run.config.optimizer.name == "none":
            return f"Nothing was trained: the test {metric} is {number(after)}"
        return f"Training left the test {metric} at {number(after)}"
    is_better = (after > before) == (metric == "accuracy")
    verb = "raised" if after > before else "reduced" if is_better else "lowered"
    how = change(metric, before, after, right(run))
    worse = "" if is_better else ", which is worse"
    fits, without = kept.get("fits", 1), ""
    for name, part in (("one_length_kept", "length for each feature"), ("smooth_kept", "rough part of the kernel")):
        without = f", whose {part} was discarded," if kept.get(name, 0) == fits else without
    return f"Training{without} {verb} the test {metric} from {number(before)} to {number(after)}{how}{worse}"


def _kept_in(run: Run) -> str:
    """In how many folds what training reached was kept; empty where that is all of them, or the sentence says it."""
    kept = run.metrics.get("fall_back", {})
    others = [count for name, count in kept.items() if name.endswith("_kept")]
    if not any(others) or kept["fits"] in others:
        return ""
    return f"what training reached was kept in {kept['fits'] - sum(others)} of {kept['fits']} {run.unit}s"


def change(metric: str, before: float, after: float, counts: tuple[int, int, int] | None = None) -> str:
    """A change in words: as ` (−24 %)`, or of an accuracy as `: 14 more of 450 test points are right`.

    counts: the test points that are right before and after, and their number.
    """
    if metric == "accuracy":
        if counts is None:
            return ""
        more, many = counts[1] - counts[0], counts[2]
        if not more:
            return f": as many of {many} test points are right"
        verb = "is" if abs(more) == 1 else "are"
        return f": {abs(more)} {'more' if more > 0 else 'fewer'} of {many} test points {verb} right"
    if not before > 0 or after == before:
        return ""
    percent = 100 * (after - before) / before
    size = f"{abs(percent):.0f}" if abs(percent) >= 10 else f"{abs(percent):.2g}"
    return f" ({'+' if percent > 0 else '−'}{size} %)"


def right(run: Run) -> tuple[int, int, int] | None:
    """The test points whose class the initial and the trained kernel predict, and the number of test points, of all
    folds together. None for a regression, for several repeats on the same test points, for points with weights, which
    are not counted alike, and where the record has no predictions of both kernels."""
    rows = read_table(run.directory / "predictions.csv", ("kernel", "repeat"))
    if rows.empty or "class" not in rows or "weight" in rows:
        return None
    before, after = (rows[rows["kernel"] == name] for name in ("initial", "trained"))
    if before.empty or not len(before) == len(after) == points_tested(run):
        return None
    is_right = (before["class"] == before["prediction"]).sum(), (after["class"] == after["prediction"]).sum()
    return int(is_right[0]), int(is_right[1]), len(after)


def explained_before_and_after(run: Run) -> tuple[TableRow, TableRow] | None:
    """The rows of R² before and after training; None for a series, whose R² is that of its forecasts."""
    found = Findings.of(run.metrics)
    is_series = (run.directory / "forecasts.csv").is_file()
    return None if is_series else found.pair(found.at("r2"))


def points_tested(run: Run) -> int:
    """The number of test points, of all folds together; 0 where no predictions were kept."""
    rows = read_table(run.directory / "predictions.csv", ("kernel", "repeat"))
    own = rows[rows["kernel"] == "trained"]
    return len(own) if run.config.evaluation.name == "k_fold" else len(own[own["repeat"] == own["repeat"].min()])


def discarded(metrics: Document) -> list[bool]:
    """For each fit of a run, whether the kernel that its training reached was discarded for the initial one, one with
    one length, or the smooth part alone. metrics: its `metrics.json`."""
    found = metrics.get("fall_back", {})
    return [how != "fitted" for how in found.get("kept", ["fitted"] * found.get("fits", 1))]
