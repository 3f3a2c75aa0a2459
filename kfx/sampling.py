"""Batches of interpolation points, their sample first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Batch:
    """`indices` into the training data; the first `sample_size` of them are the sample."""

    indices: np.ndarray
    sample_size: int


def sample_size(batch_size: int, sample_proportion: float) -> int:
    """N_c = p N_f, rounded, leaving at least one point on either side."""
    return min(max(round(sample_proportion * batch_size), 1), batch_size - 1)


class FixedSampler:
    """N_f points uniformly without replacement, N_c of them as the sample, the same sizes at each iteration.

    A uniform permutation's head is a uniform batch, and the batch's head a uniform sample of it.
    """

    def __init__(self, batch_size: int | None, sample_proportion: float) -> None:
        self.batch_size = batch_size
        self.sample_proportion = sample_proportion

    def draw(self, n: int, rng: np.random.Generator) -> Batch:
        """One batch out of `n` training points."""
        size = n if self.batch_size is None else self.batch_size
        if not 2 <= size <= n:
            raise ValueError(f"a batch of {size} points cannot be drawn from {n}")
        return Batch(rng.permutation(n)[:size], sample_size(size, self.sample_proportion))
