"""What windows see of a series: its logarithm, its changes over a step or a season, or its values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Differences:
    """The logarithm of a series, if asked for, and its changes over each of some numbers of steps, one after another.

    (1,) takes a trend away, (12,) the season of a year of months, (12, 1) both (Box & Jenkins 1970, §9.2).
    """

    logarithm: bool = False
    steps: tuple[int, ...] = ()

    @property
    def lost(self) -> int:
        """The number of first values of a series that have no difference."""
        return sum(self.steps)

    def __str__(self) -> str:
        of = "logarithms" if self.logarithm else "values"
        if not self.steps:
            return of
        over = " and ".join(f"{step} step{'s' if step > 1 else ''}" for step in self.steps)
        return f"differences of {of} over {over}"

    def of(self, values: np.ndarray) -> np.ndarray:
        """The differences, (…, T − lost, coordinates). values: (…, T, coordinates), > 0 for logarithms."""
        return self._stages(values)[-1]

    def undone(self, found: np.ndarray, history: np.ndarray) -> np.ndarray:
        """The values whose differences go on from a history as `found`, (…, steps, coordinates).

        history: the values before, (…, T, coordinates), at least `lost`.
        """
        for step, before in zip(reversed(self.steps), reversed(self._stages(history)[:-1]), strict=True):
            whole = np.concatenate([before[..., -step:, :], found], axis=-2)
            for at in range(step, whole.shape[-2]):
                whole[..., at, :] += whole[..., at - step, :]
            found = whole[..., step:, :]
        if not self.logarithm:
            return found
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(found))

    def pulled(self, to_values: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The derivatives with respect to `found` of `undone`, given those with respect to its values, all (…, steps,
        coordinates)."""
        pulled = to_values * values if self.logarithm else to_values.copy()
        for step in self.steps:
            for at in range(pulled.shape[-2] - 1, step - 1, -1):
                pulled[..., at - step, :] += pulled[..., at, :]
        return pulled

    def _stages(self, values: np.ndarray) -> list[np.ndarray]:
        """The values, or their logarithms, and each difference of the one before."""
        if self.logarithm:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.log(values)
        stages = [values]
        for step in self.steps:
            stages.append(stages[-1][..., step:, :] - stages[-1][..., :-step, :])
        return stages
