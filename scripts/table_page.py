"""Writes docs/tables.md from runs/tables/page.md and the recorded rows alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
import table_sets
from table_methods import CLASSIFICATION, LARGEST, OTHERS, REGRESSION
from table_sets import COLUMNS, COMPARISONS, table

ENOUGH = 0.9
"""The share of the tables that a method must have to be compared."""
LEVEL = 0.05
PARTS: dict[str, tuple[str, Iterable[str] | None]] = {
    "equal regression": ("equal_regression", None),
    "fresh regression": ("fresh_regression", None),
    "fresh classification": ("fresh_classification", None),
    "regression": ("regression", ["kfx", "untuned", *OTHERS]),
    "objectives": ("regression", [name for name in REGRESSION if name not in OTHERS]),
    "classification": ("classification", CLASSIFICATION),
}
"""The tables of the page: their comparisons, and the methods that they compare (None: all)."""


def paired(comparison: str, methods: Iterable[str] | None = None) -> pd.DataFrame:
    """The rows of the sets and splits that all methods have. Methods with few sets are left out."""
    rows = table(comparison)
    if methods is not None:
        rows = rows[rows["method"].isin(list(methods))]
    counts = rows.groupby("method")["set"].nunique()
    rows = rows[rows["method"].isin(counts.index[counts >= ENOUGH * counts.max()])]
    common = rows.groupby(["set", "split"])["method"].nunique()
    return rows.set_index(["set", "split"]).loc[common[common == common.max()].index].reset_index()


def differences(comparison: str, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Means over splits of the error or the accuracy, sets by methods, and what separates them from kfx's: the
    logarithm of the ratio of errors, or the difference of accuracies."""
    task = COMPARISONS[comparison].task
    means = rows.groupby(["set", "method"])[COLUMNS[task][5]].mean().unstack()
    if task == "regression":
        return means, np.log(means.div(means["kfx"], axis=0))
    return means, means.sub(means["kfx"], axis=0)


def summary(comparison: str, methods: Iterable[str] | None = None) -> pd.DataFrame:
    """For each method means over sets: error or accuracy, rank, the paired difference from kfx with its standard error
    over sets and its median, the number of sets on which kfx is better, p by `holm`, and the other columns."""
    task, rows = COMPARISONS[comparison].task, paired(comparison, methods)
    metric, of_error = COLUMNS[task][5], task == "regression"
    means, difference = differences(comparison, rows)
    found = pd.DataFrame({metric: means.mean(), "rank": means.rank(axis=1, ascending=of_error).mean()})
    if not of_error:  # of the best accuracy on each table; Fernandez-Delgado et al. 2014
        share = means.div(means.max(axis=1), axis=0)
        found["P90"], found["P95"], found["PMA"] = (share >= 0.9).mean(), (share >= 0.95).mean(), share.mean()
    found["difference"], found["error"] = difference.mean(), difference.std(ddof=1) / math.sqrt(len(means))
    found["median"] = difference.median()
    found["kfx better"] = ((difference if of_error else -difference) > 0).sum()
    found["p"] = holm(difference.drop(columns="kfx").apply(signed_rank))
    for name in COLUMNS[task][6:]:
        of_sets = rows.groupby(["method", "set"])[name].mean().groupby("method")
        found["median nlpd" if name == "nlpd" else name] = of_sets.median() if name == "nlpd" else of_sets.mean()
    found.attrs = {"sets": len(means), "splits": number_of(rows.groupby("set")["split"].nunique())}
    return found.sort_values("rank")


def number_of(splits: pd.Series) -> str:
    fewest, most = splits.min(), splits.max()
    if fewest == most:
        return "1 split" if most == 1 else f"{most} splits"
    return f"{fewest} to {most} splits ({splits.mean():.3g} on average)"


def signed_rank(difference: pd.Series) -> float:
    """p of Wilcoxon's two-sided signed-rank test: exact without ties, else by its normal limit. Sets without a
    difference are left out, and what is equal but for round-off is a tie."""
    from scipy.stats import wilcoxon

    difference = difference.round(12)
    kept = difference[difference != 0]
    is_exact = len(kept) <= 50 and not kept.abs().duplicated().any()
    with warnings.catch_warnings(action="ignore"):  # of small samples
        return float(wilcoxon(kept, method="exact" if is_exact else "approx").pvalue) if len(kept) else 1.0


def holm(p: pd.Series) -> pd.Series:
    """p after Holm's correction (1979): the chance that any of methods alike kfx falls below 0.05 is 0.05 at most."""
    ordered = p.sort_values()
    return (ordered * np.arange(len(p), 0, -1)).cummax().clip(upper=1)


def critical_difference(methods: int, sets: int) -> float:
    """The difference of mean ranks that is more than chance at 5 % (Nemenyi; Demsar 2006)."""
    from scipy.stats import studentized_range

    q = studentized_range.ppf(0.95, methods, np.inf) / math.sqrt(2)
    return float(q * math.sqrt(methods * (methods + 1) / (6 * sets)))


def page() -> str:
    """The page docs/tables.md."""
    text = (table_sets.FOLDER / "page.md").read_text()
    for name, (comparison, methods) in PARTS.items():
        found = summary(comparison, methods)
        text = text.replace(f"{{{name}}}", markdown(found)).replace(f"{{{name} verdicts}}", verdicts(found))
        for key, value in found.attrs.items():
            text = text.replace(f"{{{name} {key}}}", str(value))
    for name, sentence in SENTENCES.items():
        text = text.replace(f"{{{name}}}", sentence())
    return text


def markdown(found: pd.DataFrame) -> str:
    lines = ["| method | " + " | ".join(name.replace("_", " ") for name in found.columns) + " |"]
    lines.append("|---|" + "---:|" * len(found.columns))
    for method, row in found.iterrows():
        lines.append(f"| {method} | " + " | ".join(cell(name, value) for name, value in row.items()) + " |")
    return "\n".join(lines)


def cell(column: str, value: float) -> str:
    if column == "p" and value < 0.001:
        return "< 0.001"
    digits = {"kfx better": 0, "rank": 2}.get(column, 3)
    return "-" if math.isnan(value) else f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no minus before zero


def verdicts(found: pd.DataFrame) -> str:
    """Which methods differ from kfx at 5 %: by p, in the direction of the mean rank."""
    is_far, behind = found["p"] < LEVEL, found["rank"] > found.loc["kfx", "rank"]
    parts = {
        "better than": found.index[is_far & behind],
        "worse than": found.index[is_far & ~behind],
        "not differently from": found.index[(found["p"] >= LEVEL)],
    }
    said = [f"{words} {', '.join(f'*{name}*' for name in names)}" for words, names in parts.items() if len(names)]
    return f"At 5 % (Wilcoxon's test, Holm's correction) kfx predicts {'; '.join(said)}."


def one_table(method: str = "loo") -> str:
    """Say how much of a mean difference is due to one table."""
    of_sets = differences("regression", paired("regression", PARTS["objectives"][1]))[1][method]
    name = of_sets.abs().idxmax()
    return (
        f"One table can make a mean: of {method}'s {of_sets.mean():.3f}, {name} alone makes "
        f"{of_sets[name] / len(of_sets):.3f}; the median is {of_sets.median():.3f}."
    )


def rank_beside_others() -> str:
    means = differences("regression", paired("regression", ["kfx", *OTHERS]))[0]
    ranks = means.rank(axis=1).mean().sort_values()
    shown = ", ".join(f"{name} {rank:.2f}" for name, rank in ranks.items())
    return f"Among kfx and other programs alone the mean ranks are: {shown}."


def beside_untuned() -> str:
    """Say on how many regression tables training makes the predictions of kfx worse, by paired differences over
    splits."""
    rows = table("regression").pivot_table(index=["set", "split"], columns="method", values="rmse")
    pairs = rows[["kfx", "untuned"]].dropna()
    of_sets = (pairs["kfx"] - pairs["untuned"]).groupby("set")
    counts = of_sets.size()
    errors = of_sets.std() / counts**0.5
    worse = [name for name in counts.index[counts > 2] if of_sets.mean()[name] > errors[name]]
    names = f" ({', '.join(worse)})" if worse else ""
    return (
        f"Over {counts.mean():.3g} splits a table, kfx has a larger RMSE than the untuned kernel, by more than the "
        f"standard error of the difference, on {len(worse)} of {len(counts)} tables{names}."
    )


def gain_of_classes() -> str:
    """Say what training gains over the untrained kernel where classes are predicted."""
    rows = paired("classification", ["kfx", "untuned one length"])
    gains = -100 * differences("classification", rows)[1]["untuned one length"]
    error, p = gains.std(ddof=1) / math.sqrt(len(gains)), signed_rank(gains)
    is_sure = "" if p < LEVEL else ", which may be chance"
    return (
        f"On {len(gains)} classification tables training gains {gains.mean():.2f} ± {error:.2f} points of accuracy "
        f"over the untrained kernel (median {gains.median():.2f}, p = {p:.2f}){is_sure}."
    )


def coverage() -> str:
    covered = table("regression").query("method == 'kfx'").groupby("set")["coverage"].mean()
    return (
        f"Intervals of 95 % by kfx hold {100 * covered.mean():.1f} % of the test targets on the mean, and between 90 "
        f"and 99 % on {covered.between(0.9, 0.99).sum()} of {len(covered)} tables."
    )


def folds() -> str:
    own = table("classification").query("method == 'kfx'").groupby("set")["accuracy"]
    return (
        f"Over {own.size().mean():.3g} folds of {own.ngroups} tables *kfx* has a mean accuracy of "
        f"{100 * own.mean().mean():.2f} %."
    )


def on_small_tables(method: str = "scikit-learn GPC") -> pd.DataFrame:
    """Log losses of kfx and of a method that is measured on small tables alone, for each of these tables."""
    rows = table("classification").pivot_table(index=["set", "split"], columns="method", values="log_loss")
    return rows[["kfx", method]].dropna().groupby("set").mean()


def small_tables() -> str:
    small = on_small_tables()
    own, other = small["kfx"], small["scikit-learn GPC"]
    error = (own - other).std(ddof=1) / math.sqrt(len(small))
    return (
        f"On the {len(small)} tables with at most {LARGEST['scikit-learn GPC']} training points scikit-learn's "
        f"GaussianProcessClassifier\nhas a mean log loss of {other.mean():.3f} and kfx of {own.mean():.3f} "
        f"(difference {(own - other).mean():.3f} ± {error:.3f})."
    )


def fresh_tables() -> str:
    """List the fresh tables with their targets and numbers of training points and features."""
    lines = []
    for task in COLUMNS:
        rows = paired(f"fresh_{task}")
        sizes = rows.groupby("set")[["n", "d"]].first()
        names = [name.rsplit("/", 1) for name in sizes.index]
        shown = (f"{name} ({target}; {n}, {d})" for (name, target), (n, d) in zip(names, sizes.values, strict=True))
        lines.append(f"- {task}: {', '.join(shown)}")
    return "\n".join(lines)


SENTENCES: dict[str, Callable[[], str]] = {
    "one table": one_table,
    "others": rank_beside_others,
    "untuned": beside_untuned,
    "gain": gain_of_classes,
    "coverage": coverage,
    "folds": folds,
    "small tables": small_tables,
    "fresh tables": fresh_tables,
}


def show(comparison: str) -> None:
    """Print the summary of a comparison."""
    found = summary(comparison)
    print(f"{found.attrs['sets']} sets, {found.attrs['splits']} each\n{found.round(3).to_string()}")


def write() -> None:
    """Write docs/tables.md and its pictures."""
    (table_sets.FOLDER.parent.parent / "docs" / "tables.md").write_text(page())
    for name in ("equal regression", "classification"):
        draw(name)


def draw(part: str) -> None:
    """Draw the mean ranks with the critical difference into runs/tables/."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    comparison, methods = PARTS[part]
    found = summary(comparison, methods)[::-1]
    picture = Figure(figsize=(6.4, 0.28 * len(found) + 1.3), dpi=130, layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    rows = np.arange(len(found))
    far = critical_difference(len(found), found.attrs["sets"])
    own = found.loc["kfx", "rank"]
    axes.axvspan(own - far, own + far, color="#eef0f4", label="not different from kfx at 5 % (Nemenyi)")
    axes.scatter(found["rank"], rows, color=["#d55e00" if name == "kfx" else "#0072b2" for name in found.index])
    axes.set_yticks(rows, found.index)
    ranks = found["rank"]
    axes.set(
        xlabel=f"mean rank over {found.attrs['sets']} tables (1 is best)", xlim=(ranks.min() - 0.5, ranks.max() + 0.5)
    )
    axes.grid(axis="x", color="#d5d9e0")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    picture.legend(frameon=False, loc="outside lower center", fontsize=8)
    picture.savefig(table_sets.FOLDER / f"{comparison}.png")
