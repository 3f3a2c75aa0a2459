"""Draw batches of interpolation points, the sample first."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from kfx.config.choices import POINTS
from kfx.numerics.arrays import rows_of

if TYPE_CHECKING:
    from kfx.kernels.parameters import Value

Remembered = list[Any]
"""What a sampler needs to go on: numbers and arrays."""


@dataclass(slots=True)
class Batch:
    """`indices` into the training data, (N_f,); the first `sample_size` of them are the sample.

    half_size: size of a second sample, nested with the first, whose ρ is also wanted; None for none.
    orders: permutations of the batch that put other samples first; the objective is the mean over all of them.
    views: (N_f, 3), for each image the pixels by which it is moved down and right, and whether it is mirrored; None for
        no change.
    """

    indices: np.ndarray
    sample_size: int
    half_size: int | None = None
    orders: tuple[np.ndarray, ...] = ()
    views: np.ndarray | None = None

    @property
    def sample_sizes(self) -> tuple[int, ...]:
        """Sizes of the sample and of the second sample, if there is one."""
        return (self.sample_size,) if self.half_size is None else (self.sample_size, self.half_size)

    def of(self, x: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The batch's points with their views applied, and the same rows of `others`. x: (n, …). others: (n, …)
        each."""
        points, *rest = (rows_of(each, self.indices) for each in (x, *others))
        points = points if self.views is None else viewed(points, torch.as_tensor(self.views, device=x.device))
        return points, *rest


def viewed(images: torch.Tensor, views: torch.Tensor) -> torch.Tensor:
    """Move each image down and right by whole pixels, filling with zeros, and mirror those marked.

    images: (n, channels, height, width). views: (n, 3): down, right, whether mirrored.
    """
    n, _, height, width = images.shape
    down, right, is_mirrored = views.T
    rows = torch.arange(height, device=images.device) - down[:, None]
    columns = torch.arange(width, device=images.device).expand(n, width)
    columns = torch.where(is_mirrored[:, None] > 0, width - 1 - columns, columns) - right[:, None]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    place = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
    taken = images.flatten(2).gather(2, place.flatten(1)[:, None].expand(-1, images.shape[1], -1))
    return taken.view_as(images) * inside[:, None]


def sample_size(batch_size: int, sample_proportion: float, rounding: str = "nearest") -> int:
    """N_c = p N_f, with at least one point in the sample and one outside.

    rounding: `nearest`, halves to the even number (Owhadi & Yoo 2019 print round(N_f / 2)); `up`, as in Darcy's code.
    """
    exact = sample_proportion * batch_size
    size = math.ceil(exact - 1e-9) if rounding == "up" else round(exact)
    return min(max(size, 1), batch_size - 1)


# ---- which points


class Uniform:
    """Draw points without replacement, all with the same probability."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.n = len(x)

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Indices of a batch in random order, (size,)."""
        return rng.choice(self.n, size, replace=False)

    def reorder(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A permutation of a batch, (N_f,), that puts another sample first. indices: (N_f,)."""
        return rng.permutation(len(indices))


class Stratified(Uniform):
    """Draw batches and samples that hold the classes in the proportions of the data, to within one point of each
    class."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__(x, y)
        self.labels = torch.unique(y, dim=0, return_inverse=True)[1].cpu().numpy()

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        return self._order(self.labels, rng)[:size]

    def reorder(self, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._order(self.labels[indices], rng)

    @staticmethod
    def _order(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        # The shuffled members of a class get equally spaced places in [0, 1): every head of the order has its share.
        place = np.empty(len(labels))
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            place[members] = (np.arange(len(members)) + rng.random()) / len(members)
        return np.argsort(place)


class Neighbourhood(Uniform):
    """Draw a random point and its nearest neighbours, in random order, so that the kernel is judged by local
    interpolation. With a length for each feature distances are those of x / ℓ."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        super().__init__(x, y)
        self.flat = x.reshape(len(x), -1)
        self.scale(1.0)

    def scale(self, lengths: Value) -> None:
        """Divide the features by these lengths, (features,)."""
        self.scaled = self.flat / torch.as_tensor(lengths, dtype=self.flat.dtype, device=self.flat.device)

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        return rng.permutation(self.nearest(np.array([rng.integers(self.n)]), size)[0])

    def nearest(self, centres: np.ndarray, count: int) -> np.ndarray:
        """Indices of the `count` points nearest to each centre, itself among them, (centres, count)."""
        of = torch.as_tensor(centres, device=self.scaled.device)
        # by differences: from norms and products, one far point would spoil the distances of all
        distances = torch.cdist(self.scaled[of], self.scaled, compute_mode="donot_use_mm_for_euclid_dist")
        distances[torch.arange(len(of)), of] = -1.0  # a centre is in front of its copies
        return torch.topk(distances, count, dim=1, largest=False).indices.cpu().numpy()


CHOICES: dict[str, type[Uniform]] = dict(zip(POINTS, (Uniform, Stratified, Neighbourhood), strict=True))


# ---- how many of them are the sample


class Sampler:
    """Draw batches of N_f points with samples of N_c, the same sizes at each iteration.

    choice: which points, a name in `CHOICES`. samples: the number of samples of a batch over which the objective is
        averaged.
    augment: for images, random `crop` of the image within `padding` zeros, and `flip` of half of them.
    Call `start` before the first draw. A subclass gives the proportion at each iteration; `state` and `restore` carry
    what it remembers.
    """

    diagnostics: tuple[str, ...] = ()
    """Its columns of the trace."""
    _wants_half = False

    def __init__(
        self,
        batch_size: int | None,
        sample_proportion: float = 0.5,
        choice: str = "uniform",
        samples: int = 1,
        rounding: str = "nearest",
        augment: Sequence[str] = (),
        padding: int = 4,
    ) -> None:
        self.augment, self.padding = tuple(augment), padding
        self.batch_size = batch_size
        self.sample_proportion = sample_proportion
        self.choice, self.samples, self.rounding = choice, samples, rounding

    def start(self, x: torch.Tensor, y: torch.Tensor) -> Self:
        """Take the training points, and forget those of an earlier fit. x: (n, …). y: (n, outputs)."""
        self._points = CHOICES[self.choice](x, y)
        self.restore([])
        return self

    @property
    def compares_points(self) -> bool:
        """Whether batches depend on distances of points, whose metric `follow` sets."""
        return isinstance(self._points, Neighbourhood)

    def follow(self, lengths: Value) -> None:
        """Let the next batches be neighbours by distances of x / ℓ. lengths: ℓ, (features,)."""
        if isinstance(self._points, Neighbourhood):
            self._points.scale(lengths)

    def proportion(self, iteration: int) -> float:
        """p = N_c / N_f."""
        return self.sample_proportion

    def draw(self, rng: np.random.Generator, iteration: int = 0) -> Batch:
        """Draw the batch of an iteration; ValueError if there are too few points for it."""
        n = self._points.n
        size = n if self.batch_size is None else self.batch_size
        if not 2 <= size <= n:
            raise ValueError(f"a batch of {size} points cannot be drawn from {n}")
        half = sample_size(size, 0.5, self.rounding) if self._wants_half else None
        indices = self._drawn(size, rng)
        orders = tuple(self._points.reorder(indices, rng) for _ in range(self.samples - 1))
        sample = sample_size(len(indices), self.proportion(iteration), self.rounding)
        return Batch(indices, sample, half, orders, self._views(len(indices), rng))

    def _drawn(self, size: int, rng: np.random.Generator) -> np.ndarray:
        return self._points.draw(size, rng)

    def _views(self, count: int, rng: np.random.Generator) -> np.ndarray | None:
        if not self.augment:
            return None
        views = np.zeros((count, 3), dtype=np.int64)
        if "crop" in self.augment:
            views[:, :2] = rng.integers(-self.padding, self.padding + 1, (count, 2))
        if "flip" in self.augment:
            views[:, 2] = rng.integers(0, 2, count)
        return views

    @property
    def epoch(self) -> int:
        """Number of batches that together hold as many points as the training data."""
        return math.ceil(self._points.n / (self.batch_size or self._points.n))

    def shown(self, batch: Batch) -> dict[str, float]:
        """Values of its columns of the trace for this batch."""
        return dict.fromkeys(self.diagnostics, batch.sample_size)

    def observe(self, rho_half: float) -> None:
        """Take ρ of the half sample of an evaluated batch; NaN if there is none."""

    def state(self) -> Remembered:
        """What `restore` needs to go on."""
        return []

    def restore(self, state: Remembered) -> None:
        """Restore a `state`; an empty list stands for the beginning of a fit."""


class CentresSampler(Sampler):
    """Draw random centres, the nearest neighbours of each, and random points up to N_f, as KernelFlows.jl does; the
    centres are outside the sample.

    centres: their number κ. neighbours: of each centre; None for the smaller of 3 N_f / 4κ and twice the number of
        features. With a length for each feature distances are those of x / ℓ.
    """

    def __init__(self, batch_size: int | None, centres: int, neighbours: int | None, **options: object) -> None:
        super().__init__(batch_size, choice="neighbourhood", **options)  # type: ignore[arg-type]
        self.centres, self.neighbours = centres, neighbours

    def draw(self, rng: np.random.Generator, iteration: int = 0) -> Batch:
        points = self._points
        assert isinstance(points, Neighbourhood)
        size = points.n if self.batch_size is None else self.batch_size
        if not self.centres < size <= points.n:
            raise ValueError(f"a batch of {size} points with {self.centres} centres cannot be drawn from {points.n}")
        usual = min(3 * size // self.centres // 4, 2 * points.flat.shape[1])
        order = rng.permutation(points.n)
        centres = order[: self.centres]
        nearest = points.nearest(centres, min((self.neighbours or usual) + 1, points.n))
        by_rank = np.array(list(dict.fromkeys(nearest.T.ravel().tolist())))
        near = by_rank[~np.isin(by_rank, centres)][: size - self.centres]
        rest = np.setdiff1d(order, np.concatenate([centres, near]), assume_unique=True)
        others = rng.permutation(rest)[: size - self.centres - len(near)]
        return Batch(np.concatenate([near, others, centres]), size - self.centres)


class EpochSampler(Sampler):
    """Draw every point once an epoch, in a new random order each time.

    The last batch of an epoch holds the rest; a rest of one point is left out.
    """

    diagnostics = ("epoch",)

    _epoch: int
    _left: np.ndarray

    @property
    def epoch(self) -> int:
        whole, left = divmod(self._points.n, self.batch_size or self._points.n)
        return whole + (left > 1)

    def _drawn(self, size: int, rng: np.random.Generator) -> np.ndarray:
        if len(self._left) < 2:
            self._left, self._epoch = self._points.draw(self._points.n, rng), self._epoch + 1
        indices, self._left = self._left[:size], self._left[size:]
        return indices

    def shown(self, batch: Batch) -> dict[str, float]:
        return {"epoch": self._epoch}

    def state(self) -> Remembered:
        return [self._epoch, self._left]

    def restore(self, state: Remembered) -> None:
        self._epoch, self._left = (int(state[0]), np.asarray(state[1])) if state else (0, np.zeros(0, dtype=np.int64))


class LinearSampler(Sampler):
    """p changes linearly from `low` at the first iteration to `high` at the last (Darcy 2020, §2.3.3)."""

    diagnostics = ("sample_size",)

    def __init__(self, batch_size: int | None, low: float, high: float, iterations: int, **options: object) -> None:
        super().__init__(batch_size, **options)  # type: ignore[arg-type]
        self.low, self.high, self.iterations = low, high, iterations

    def proportion(self, iteration: int) -> float:
        return self.low + (self.high - self.low) * iteration / max(self.iterations - 1, 1)


class DynamicSampler(Sampler):
    """p = ½ (1 − the mean of the last `window` values of ρ_½), at least `floor`, ½ at first (Darcy 2020, §2.3.3).

    ρ_½ is ρ with half of the batch as the sample. ρ of the sample itself would not do: a small p would keep itself
    small.
    """

    diagnostics = ("sample_size",)
    _wants_half = True

    def __init__(self, batch_size: int | None, window: int, floor: float, **options: object) -> None:
        super().__init__(batch_size, **options)  # type: ignore[arg-type]
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
