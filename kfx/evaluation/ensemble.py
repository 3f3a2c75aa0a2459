"""Forecasts by the median of several kernels on windows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kfx.data.backtest import Predictor
from kfx.data.windows import Predict, Trajectory, Windows
from kfx.evaluation.systems import InMemory
from kfx.kernels.base import Kernel
from kfx.numerics.arrays import as_tensor, in_numpy
from kfx.numerics.regularization import Regularization
from kfx.outcomes import DataError


@dataclass(frozen=True)
class Member:
    """Windows, fitted to a series, and the prediction of their targets."""

    windows: Windows
    predict: Predict


def solved(windows: Windows, kernel: Kernel, regularization: Regularization, train: Sequence[Trajectory]) -> Member:
    """The member with these settings, from all windows of the series. NumericalError if that fails."""
    windows = windows.fitted(train)
    cut = [windows.cut(each)[:2] for each in train if len(each) > windows.reach]
    x, y = (np.concatenate(kind) for kind in zip(*cut, strict=True))
    found = InMemory(kernel, as_tensor(x)).interpolant(regularization, as_tensor(y))
    return Member(windows, Predictor(kernel, x, in_numpy(found.alpha)))


Other = tuple[Windows, Kernel, Regularization]
"""What a member is solved from."""


def with_others(
    windows: Windows, predict: Predict, others: Sequence[Other], train: Sequence[Trajectory]
) -> list[Member]:
    """The member with fitted windows and its prediction, and the others, solved from all windows of the series."""
    return [Member(windows, predict), *(solved(*other, train) for other in others)]


_FAR = 5.0
"""A member's forecast does not count where it is farther from the middle of what is known than this many times half of
its range, unless most are."""


def forecast(
    members: Sequence[Member], known: Sequence[np.ndarray], times: Sequence[np.ndarray], steps: int
) -> np.ndarray:
    """The median of the members' forecasts, (m, steps, coordinates).

    known: the values before each of m origins, (T, coordinates) each, of which missing ones are forecast first. times:
    theirs and those of the steps, (T + steps,) each. DataError for too few values, or too many missing ones, for the
    first member; others are then left out.
    """
    return _median(_of_each(members, known, times, steps), known)


def onwards(members: Sequence[Member], last: Trajectory, time: np.ndarray) -> np.ndarray:
    """The median of the members' forecasts of what follows a series at some times, (steps,), as `forecast`; (steps,
    coordinates). Warns if members are left out."""
    known = [last.values]
    each = _of_each(members, known, [np.concatenate([last.time, time])], len(time))
    if few := len(members) - len(each):
        warnings.warn(
            f"{few} of the {len(members)} settings of which the forecast is the median are left out: they need up to "
            f"{max(member.windows.reach for member in members)} values after one another",
            stacklevel=3,
        )
    return np.asarray(_median(each, known)[0])


def _of_each(
    members: Sequence[Member], known: Sequence[np.ndarray], times: Sequence[np.ndarray], steps: int
) -> list[np.ndarray]:
    """The forecasts of the members that can go on from these values, the first one always."""
    each = [_of_member(members[0], known, times, steps)]
    for member in members[1:]:
        try:
            each.append(_of_member(member, known, times, steps))
        except DataError:
            continue
    return each


def _median(each: Sequence[np.ndarray], known: Sequence[np.ndarray]) -> np.ndarray:
    """The median of forecasts, (m, steps, coordinates) each, without those that are far from what is known."""
    found = np.stack(each)
    if len(each) == 1:
        return np.asarray(found[0])
    low, high = (np.stack([of(values, axis=0) for values in known])[:, None] for of in (np.nanmin, np.nanmax))
    is_far = ~(np.abs(found - (low + high) / 2) <= _FAR / 2 * (high - low))
    found[is_far & (is_far.mean(axis=0) <= 0.5)] = np.nan
    return np.asarray(np.nanmedian(np.where(np.isinf(found), np.nan, found), axis=0))


def _of_member(member: Member, known: Sequence[np.ndarray], times: Sequence[np.ndarray], steps: int) -> np.ndarray:
    windows, pairs = member.windows, list(zip(known, times, strict=True))
    histories = np.stack([windows.history(member.predict, values, time) for values, time in pairs])
    ahead = np.stack([time[len(values) - windows.reach :] for values, time in pairs])
    with np.errstate(all="ignore"):
        return windows.forecast(member.predict, histories, ahead, steps)
