"""Means of the regret of criteria, over all settings and over parts of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.stats import wilcoxon

from kfx.criteria.law import Row
from kfx.numerics.significance import p_of_being_worse

WAYS = ("tiny", "leave_one_out", "trained")
"""λ is the smallest, or for each length the best by leave-one-out errors, or minimises the criterion with it."""
_SETTING = ["lambda", "truth", "model", "collection", "d", "n", "noise"]
_MOST_PARTS, _LEVEL = 12, 0.05
_SMOOTHNESS = {
    "step": 0.4,
    "kinked": 1.4,
    "matern12": 0.5,
    "matern32": 1.5,
    "matern52": 2.5,
    "rbf": 9,
    "oscillatory": 10,
}
"""Order of the Sobolev spaces in which draws and formulas lie; an analytic function is smoother than any draw."""


def by_setting(rows: pd.DataFrame) -> pd.DataFrame:
    """The regret of each way to λ, setting and draw, a column for each criterion, in the order of the study."""
    found = rows[rows["regret"].notna()]
    names = list(dict.fromkeys(found["criterion"]))
    keys = [key for key in _SETTING if key in found and (key != "n" or "collection" not in found)]
    return found.pivot_table(index=[*keys, "draw"], columns="criterion", values="regret")[names]


def among_best(regrets: pd.DataFrame) -> pd.DataFrame:
    """Whether each criterion is among the best of each setting: not worse than the one of the least mean regret, by a
    paired one-tailed t-test over draws at 5 %. As 1 and 0, and NaN where there are fewer than three draws."""

    def tested(own: pd.DataFrame) -> pd.Series:
        asked = own.dropna(axis=1)
        p = np.array(p_of_being_worse(list(asked.to_numpy().T), [range(len(asked))] * asked.shape[1]))
        return pd.Series(np.where(np.isnan(p), np.nan, p >= _LEVEL), asked.columns)

    keys = [key for key in regrets.index.names if key != "draw"]
    return pd.DataFrame({key: tested(own) for key, own in regrets.groupby(keys)}).T.rename_axis(keys)[list(regrets)]


def parts(settings: pd.DataFrame) -> Iterator[tuple[str, pd.Series]]:
    """Yield the name of each part of the settings, "all" first, and whether each setting is in it.

    settings: a column for each of truth, model, d, n, noise or collection, a row for each setting.
    """
    yield "all", pd.Series(True, settings.index)
    fits = [fit(*each) for each in zip(settings["truth"], settings["model"], strict=True)]
    for key, values in settings.assign(**{"model is": fits}).items():
        if 1 < values.nunique() <= _MOST_PARTS:
            for value in dict.fromkeys(values):
                yield f"{key} {value if isinstance(value, str) else format(value, 'g')}", values == value


def fit(truth: str, model: str) -> str:
    """Whether a model is the truth's own process, or smoother or rougher than the truth; empty for a data set."""
    if truth == model or truth not in _SMOOTHNESS:
        return "right" if truth == model else ""
    return "too smooth" if _SMOOTHNESS[model] > _SMOOTHNESS[truth] else "too rough"


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """The share of settings in which a criterion is among the best, for each way to λ and part: levels of the index."""
    best = among_best(by_setting(rows))
    made = {}
    for how in WAYS:
        own = best.xs(how)
        for name, is_in in parts(own.index.to_frame(index=False)):
            made[how, name] = own[is_in.to_numpy()].mean()
    return pd.DataFrame(made).T.rename_axis(["lambda", "part"])


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean regret × 100 of each criterion over settings, for each way to λ, over all of them and over parts of them.

    Also for each way: its standard error over settings, the share of settings in which a criterion is among the best,
    p of Wilcoxon's test over settings against the criterion of the least mean, the coverage of intervals of 95 %; and
    the cost of training. Shares and coverages are in %.
    """
    found = by_setting(rows)
    best, regrets = among_best(found), found.groupby([key for key in found.index.names if key != "draw"]).mean()
    covered = rows.pivot_table(index="lambda", columns="criterion", values="coverage")
    made: list[Row] = []

    def add(how: str, part: str, settings: int, values: pd.Series) -> None:
        made.append({"lambda": how, "part": part, "settings": settings, **{str(k): v for k, v in values.items()}})

    for how in WAYS:
        own = pd.DataFrame(regrets.xs(how)).dropna(axis=1, how="all")
        for name, is_in in parts(own.index.to_frame(index=False)):
            add(how, name, int(is_in.sum()), 100 * pd.DataFrame(own[is_in.to_numpy()]).mean())
        least = own.mean().idxmin()
        add(how, "standard error", len(own), 100 * own.sem())
        add(how, "among the best in %", len(own), 100 * pd.DataFrame(best.xs(how)).mean())
        add(how, f"p against {least}", len(own), own.apply(lambda each, to=own[least]: _p(each, to)))
        add(how, "coverage in %", len(own), 100 * covered.T[how].reindex(own.columns))
    if "seconds" in rows:
        paid = rows[rows["seconds"].notna()].groupby("criterion", sort=False)[["evaluations", "seconds"]].mean()
        for column in paid:
            add("", str(column), int(rows["seconds"].notna().sum() / len(paid)), paid[column])
    return pd.DataFrame(made)


def _p(one: pd.Series, other: pd.Series) -> float:
    return 1.0 if (one == other).all() else float(wilcoxon(one, other).pvalue)
