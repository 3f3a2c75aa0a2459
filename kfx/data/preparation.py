"""How data are prepared for a kernel, and the ways among which refitted folds choose."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kfx.config.choices import STEPS, TARGETS
from kfx.data.dataset import Dataset, fillers
from kfx.data.steps import MOST_CODES
from kfx.data.warps import warp_for
from kfx.outcomes import RecordError

_FAR = 5.0
"""A feature with a value further than so many deviations from its mean has heavy tails."""
_SKEWED = 1.0
_SMOOTH, _CHANNELS = 0.98, 20
"""Features are a spectrum if neighbours correlate so much, and there are so many."""
_OF_SPECTRA = (("snv",), ("derivative",), ("second_derivative",), ("snv", "second_derivative"))


@dataclass(frozen=True)
class Preparation:
    """preprocess, targets: as `dataset.preprocess` and `dataset.targets`."""

    preprocess: tuple[str, ...]
    targets: str

    def __str__(self) -> str:
        return f"{', '.join(self.preprocess) or 'no steps'}; targets {self.targets}"


def offered(data: Dataset, usual: Preparation, *, warps: bool) -> list[Preparation]:
    """The usual preparation first, then those that may predict better: other steps for a spectrum or for features with
    heavy tails, and with `warps` a transform of skewed targets.

    data: before preprocessing; its points may miss values.
    """
    steps = [(), *_steps(data.x_train)]
    targets = [usual.targets]
    if warps and data.labels_train is None and data.y_train.shape[1] == 1 and _skewness(data.y_train[:, 0]) > _SKEWED:
        targets.append(warp_for(data.y_train))
    return [Preparation((*own, *usual.preprocess), kind) for kind in targets for own in steps]


def _steps(x: np.ndarray) -> list[tuple[str, ...]]:
    if x.ndim != 2 or len(x) < 3:
        return []
    known = np.where(np.isnan(x), fillers(x, "median"), x)
    centred = known - known.mean(axis=0)
    with np.errstate(over="ignore"):
        deviation = centred.std(axis=0)
    if not np.isfinite(deviation).all():  # values too large to be squared, which are refused later
        return []
    varying = deviation > 0
    z = centred[:, varying] / deviation[varying]
    if varying.all() and z.shape[1] >= _CHANNELS and np.median((z[:, 1:] * z[:, :-1]).mean(axis=0)) > _SMOOTH:
        return list(_OF_SPECTRA)
    far = known[:, varying][:, np.abs(z).max(axis=0) > _FAR]
    return [("quantile",)] if any(len(np.unique(column)) > MOST_CODES for column in far.T) else []


def _skewness(y: np.ndarray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        z = (y - y.mean()) / (y.std() or 1.0)
        return float(np.mean(z**3))


def recorded(metrics: Mapping[str, Any], where: str, count: int) -> list[Preparation | None]:
    """How a run prepared its data, or each of `count` folds, by its `metrics.json`; None: as configured.

    where: begins the message of a RecordError for an entry that is none.
    """
    found = metrics.get("preparation")
    if found is None:
        return [None] * count
    with contextlib.suppress(TypeError, KeyError):
        chosen = [Preparation(tuple(own["preprocess"]), own["targets"]) for own in found]
        words = {word for own in chosen for word in own.preprocess}
        if len(chosen) == count and words <= set(STEPS) and {own.targets for own in chosen} <= set(TARGETS):
            return list(chosen)
    raise RecordError(f"{where}: metrics.json: preparation is no list of {count} with preprocess and targets")
