"""Batches of interpolation points, their sample first."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Batch:
    """`indices` into the training data; the first `sample_size` of them are the sample.

    half_size: a second sample, nested with the first, whose ρ is wanted as well; None where it is not.
    """

    indices: np.ndarray
    sample_size: int
    half_size: int | None = None


def sample_size(batch_size: int, sample_proportion: float) -> int:
    """N_c = p N_f, rounded, leaving at least one point on either side."""
    return min(max(round(sample_proportion * batch_size), 1), batch_size - 1)


class FixedSampler:
    """N_f points uniformly without replacement, N_c of them as the sample, the same sizes at each iteration.

    A uniform permutation's head is a uniform batch, and the batch's head a uniform sample of it. A subclass gives
    the proportion at each iteration; what it remembers of the run goes through `state` and `restore`.
    """

    diagnostics: tuple[str, ...] = ()
    """Further columns of the trace."""
    _wants_half = False

    def __init__(self, batch_size: int | None, sample_proportion: float = 0.5) -> None:
        self.batch_size = batch_size
        self.sample_proportion = sample_proportion

    def proportion(self, iteration: int) -> float:
        """p = N_c / N_f."""
        return self.sample_proportion

    def draw(self, n: int, rng: np.random.Generator, iteration: int = 0) -> Batch:
        """The batch of an iteration out of `n` training points."""
        size = n if self.batch_size is None else self.batch_size
        if not 2 <= size <= n:
            raise ValueError(f"a batch of {size} points cannot be drawn from {n}")
        half = sample_size(size, 0.5) if self._wants_half else None
        return Batch(rng.choice(n, size, replace=False), sample_size(size, self.proportion(iteration)), half)

    def shown(self, batch: Batch) -> dict[str, float]:
        """What the diagnostics of this batch are."""
        return dict.fromkeys(self.diagnostics, batch.sample_size)

    def observe(self, rho_half: float) -> None:
        """Hear ρ of the half sample of an evaluated batch; NaN where there is none."""

    def state(self) -> list[float]:
        """What `restore` needs to go on."""
        return []

    def restore(self, state: list[float]) -> None:
        """Set what is remembered; an empty list at the start of a fit."""


class LinearSampler(FixedSampler):
    """p rises, or falls, linearly from `start` at the first iteration to `end` at the last (Darcy 2020, §2.3.3)."""

    diagnostics = ("sample_size",)

    def __init__(self, batch_size: int | None, start: float, end: float, iterations: int) -> None:
        super().__init__(batch_size)
        self.start, self.end, self.iterations = start, end, iterations

    def proportion(self, iteration: int) -> float:
        return self.start + (self.end - self.start) * iteration / max(self.iterations - 1, 1)


class DynamicSampler(FixedSampler):
    """p = ½ (1 − the mean of the last `window` values of ρ_½), at least `floor` (Darcy 2020, §2.3.3); ½ at first.

    ρ_½ is ρ with half of the batch as sample: of the sample itself a small p would keep itself small.
    """

    diagnostics = ("sample_size",)
    _wants_half = True

    def __init__(self, batch_size: int | None, window: int, floor: float) -> None:
        super().__init__(batch_size)
        self.floor = floor
        self._last: deque[float] = deque(maxlen=window)

    def proportion(self, iteration: int) -> float:
        return max(0.5 * (1 - sum(self._last) / len(self._last)), self.floor) if self._last else 0.5

    def observe(self, rho_half: float) -> None:
        if math.isfinite(rho_half):
            self._last.append(rho_half)

    def state(self) -> list[float]:
        return list(self._last)

    def restore(self, state: list[float]) -> None:
        self._last.clear()
        self._last.extend(state)
