"""Tests of whether one of several rows of measurements is worse than the best of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

LEAST = 3
"""The smallest number of values, or of pairs, that is tested."""


def p_of_being_worse(losses: Sequence[np.ndarray], seeds: Sequence[Sequence[int]]) -> list[float]:
    """For each row the p-value of a one-tailed t-test that it is worse than the row of the smallest mean; 1 for that
    one, NaN where there are too few values.

    losses: of each row, (n,), smaller is better. seeds: of each row, n. Values with the same seed are compared in
    pairs, where each row has a seed once and at least `LEAST` seeds match, others by Welch's test.
    """
    means = np.array([each.mean() for each in losses])
    if not np.isfinite(means).any():
        return [math.nan] * len(losses)
    best = int(np.nanargmin(means))
    return [
        (1.0 if len(own) >= LEAST else math.nan) if i == best else _p(own, losses[best], seeds[i], seeds[best])
        for i, own in enumerate(losses)
    ]


def _p(own: np.ndarray, best: np.ndarray, seeds: Sequence[int], of_best: Sequence[int]) -> float:
    from scipy.stats import ttest_ind, ttest_rel

    if min(len(own), len(best)) < LEAST or not (np.isfinite(own).all() and np.isfinite(best).all()):
        return math.nan
    matching = sorted(set(seeds) & set(of_best))
    is_paired = len(matching) >= LEAST and len(set(seeds)) == len(seeds) and len(set(of_best)) == len(of_best)
    if is_paired:
        pairs = [(own[list(seeds).index(seed)], best[list(of_best).index(seed)]) for seed in matching]
        own, best = np.array(pairs).T
    with warnings.catch_warnings():  # warnings about values that hardly vary
        warnings.simplefilter("ignore", RuntimeWarning)
        test = (
            ttest_rel(own, best, alternative="greater")
            if is_paired
            else ttest_ind(own, best, equal_var=False, alternative="greater")
        )
    return 1.0 if math.isnan(test.pvalue) else float(test.pvalue)  # NaN: the values are the same
