"""Options of data sets of images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kfx.config.fields import FieldError, number, ranged, word
from kfx.config.option import option
from kfx.data.options import DatasetOption, TableOption
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from kfx.config.parts import ConfigView
    from kfx.data.dataset import Dataset


def _classes(last: int = 9) -> list[int] | None:
    return ranged(
        None,
        f"two or more different numbers from 0 to {last}, or null for all",
        lambda v: v is None or (all(isinstance(i, int) and 0 <= i <= last for i in v) and len(set(v)) == len(v) > 1),
        "classes to keep, renumbered from 0 in ascending order",
    )


@option("dataset", "digits", "scikit-learn's 1797 handwritten digits, 8 x 8 pixels; embedded, needs no file")
class DigitsOption(TableOption):
    builds = "kfx.data.embedded:digits"
    has_classes = True
    image = (8, 8)
    pool = 1797

    n_test: int = number(
        500,
        "whole >= 0",
        "number of test points, drawn at random by seed; 0 with evaluation=k_fold, whose folds are test points",
    )
    classes: list[int] | None = _classes()

    def available(self) -> int:
        left = self.pool - self.n_test
        return left if self.classes is None else min(left, 183 * len(self.classes))


@dataclass
class Images(DatasetOption):
    """Images with separate training and test files."""

    has_classes = True
    most_of_a_class: ClassVar[int]

    n_train: int | None = number(None, "whole >= 2", "number of training images, drawn at random by seed", null="all")
    n_test: int | None = number(1000, "whole >= 1", "number of test images, drawn at random by seed", null="all")
    classes: list[int] | None = _classes()

    def available(self) -> int | None:
        if self.pool is None or self.classes is None:
            return self.pool
        return min(self.pool, self.most_of_a_class * len(self.classes))


@dataclass
class IdxImages(Images):
    """MNIST and data sets in its format: 60 000 training images in one file, 10 000 test images in another."""

    image = (28, 28)
    pool = 60_000

    train_range: list[int] | None = ranged(
        None,
        "[first, last], whole numbers with 0 <= first < last",
        lambda v: len(v) == 2 and all(isinstance(i, int) for i in v) and 0 <= v[0] < v[1],
        "first and last training image to train on, counted from 0",
        null="all",
    )
    test_on: str = word(
        "test | rest", "images to test on; rest: the training images outside train_range, for validation"
    )
    copies: int = number(
        0, "whole >= 0 and <= 1000", "copies of each training image, each moved at random, that are added to them"
    )
    shift: float = number(2.0, ">= 0 and <= 28", "with copies: their largest shift along each axis, in pixels")
    rotation: float = number(10.0, ">= 0 and <= 180", "with copies: their largest rotation, in degrees")

    def __post_init__(self) -> None:
        super().__post_init__()
        last = self.pool - 1
        if self.train_range is not None and self.train_range[1] > last:
            raise FieldError("train_range", self.train_range, f"a last image of at most {last}")
        if self.test_on == "rest" and self.train_range in (None, [0, last]):
            raise FieldError("test_on", "rest", "a train_range that leaves some, or test")

    def available(self) -> int:
        inside = self.pool if self.train_range is None else self.train_range[1] - self.train_range[0] + 1
        return inside if self.classes is None else min(inside, self.most_of_a_class * len(self.classes))

    def size(self) -> int:
        return super().size() * (1 + self.copies)

    def check(self, config: ConfigView) -> None:
        from kfx.numerics.formatting import in_bytes
        from kfx.numerics.memory import machine_bytes

        super().check(config)
        wanted, memory = 8 * self.size() * math.prod(self.image), machine_bytes()
        if self.copies and wanted > memory:
            raise ConfigError(
                f"dataset.copies={self.copies}: {self.size()} images take {in_bytes(wanted)}, and the machine has "
                f"{in_bytes(memory)}; take fewer, or a smaller n_train"
            )

    def build(self, rng: np.random.Generator) -> Dataset:
        from kfx.data.images import idx_dataset, with_moved_copies

        within = None if self.train_range is None else (self.train_range[0], self.train_range[1])
        data = idx_dataset(self.name, self.n_train, self.n_test, self.classes, rng, within, self.test_on == "rest")
        return with_moved_copies(data, self.copies, self.shift, self.rotation, rng) if self.copies else data


@option("dataset", "mnist", "MNIST: handwritten digits, 28 x 28 pixels in [0, 1], 60000 training and 10000 test images")
class MNISTOption(IdxImages):
    most_of_a_class = 6742


@option(
    "dataset",
    "fashion_mnist",
    "Fashion-MNIST: articles of clothing, 28 x 28 pixels in [0, 1], 60000 training and 10000 test images",
)
class FashionMNISTOption(IdxImages):
    most_of_a_class = 6000


@option("dataset", "cifar10", "CIFAR-10: colour images of 32 x 32 pixels in [-1, 1], channels first")
class Cifar10Option(Images):
    builds = "kfx.data.images:cifar10"
    image = (32, 32, 3)
    most_of_a_class = 5000

    batches: list[int] = ranged(
        [1, 2, 3, 4, 5],
        "a list of different numbers from 1 to 5",
        lambda v: len(v) > 0 and len(set(v)) == len(v) and all(1 <= i <= 5 for i in v),
        "which of the five training files to read",
    )

    def available(self) -> int:
        images = 10_000 * len(self.batches)
        return images if self.classes is None else min(images, self.most_of_a_class * len(self.classes))

    def files(self) -> list[tuple[str, str]]:
        return [("cifar10", f"data_batch_{i}") for i in self.batches] + [("cifar10", "test_batch")]


@option("dataset", "cifar100", "CIFAR-100: colour images of 32 x 32 pixels in [-1, 1] in 100 classes, channels first")
class Cifar100Option(Images):
    builds = "kfx.data.images:cifar100"
    image = (32, 32, 3)
    pool = 50_000
    most_of_a_class = 500

    classes: list[int] | None = _classes(99)
