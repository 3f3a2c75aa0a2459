"""Cross-validation over the training points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kfx.config.fields import flag, number
from kfx.config.option import option
from kfx.config.parts import ConfigView
from kfx.config.registry import OPTIONS
from kfx.evaluation.options import EvaluationOption, Split
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from kfx.data.dataset import Dataset
    from kfx.numerics.streams import Streams


@option(
    "evaluation",
    "k_fold",
    "k-fold cross-validation over the training points: a kernel is trained on each fold's complement "
    "(dataset.n_test=0: over all points)",
)
class KFoldOption(EvaluationOption):
    folds: int = number(5, "whole >= 2", "number of folds, each used once as the test points")
    shuffle: bool | None = flag(
        None,
        "draw the folds by seed, each with its share of every class; false: in the order of the file",
        null="true with own data",  # kfx's own tables keep the order of their files, as in papers
        settle=lambda _, config: config.dataset.is_own or config.dataset.origin != "kfx",
    )
    train_error: bool | None = flag(
        None,
        "also measure train_mse and train_mae, the errors on training points",
        null="false with own data, whose targets may be transformed, and with a kernel for each output, else true",
        settle=lambda _, config: not (config.dataset.is_own or config.outputs.is_separate),
    )

    def fold_size(self, n: int) -> int:
        return n - math.ceil(n / self.folds)

    def test_size(self, config: ConfigView) -> int:
        return math.ceil(config.dataset.size() / self.folds)

    def parts(self, whole: Dataset, rng: np.random.Generator) -> list[Dataset]:
        from kfx.data.splits import folds

        return folds(whole, self.folds, bool(self.shuffle), rng)

    def splits(self, folds: Sequence[Dataset], streams: Streams) -> list[Split]:
        import numpy as np

        rng, whole = streams["evaluation"], self.n_interpolation is None
        sizes = [len(fold.x_train) for fold in folds]
        return [(k, k, np.arange(n) if whole else rng.permutation(n)) for k, n in enumerate(sizes)]

    def check(self, config: ConfigView) -> None:
        if config.dataset.is_series:
            raise ConfigError(
                f"evaluation=k_fold: takes a table, and the windows of dataset={config.dataset.name} overlap; leave it "
                "out: series are tested on their last steps, dataset.n_test"
            )
        if not config.dataset.is_table:
            tables = ", ".join(name for name, node in OPTIONS["dataset"].items() if node.is_table)
            raise ConfigError(f"evaluation=k_fold: takes a table, dataset={tables}; got {config.dataset.name}")
        whole = config.dataset.size()
        if self.fold_size(whole) < 2 or self.folds > whole:
            raise ConfigError(f"evaluation.folds={self.folds}: too many for {whole} points; take fewer folds")
        super().check(config)
