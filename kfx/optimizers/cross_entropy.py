"""The option `objective=cross_entropy`: the cross-entropy of a network's linear head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kfx.config.fields import number
from kfx.config.option import option
from kfx.config.parts import ConfigView
from kfx.config.rules import refuses, rows
from kfx.objectives.head_option import HeadOption
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from kfx.kernels.base import Kernel
    from kfx.optimizers.loss import Loss


@option("objective", "cross_entropy", "For comparison: a linear head on a network's features, trained without kernels")
class CrossEntropyOption(HeadOption):
    rules = rows(
        refuses(
            lambda _, c: not c.kernel.has_network,
            "trains a network; kernel={config.kernel.name} has none, use network_features",
        ),
        refuses(
            lambda _, c: bool(getattr(c.kernel, "dropout", 0)), "has its own, objective.dropout; set kernel.dropout=0"
        ),
    )
    quick = ("kernel=network_features", "optimizer.learning_rate=0.01")

    dropout: float = number(0.25, ">= 0 and < 1", "share of the features set to zero in a training step")
    inner_weight: float = number(
        0.0,
        ">= 0",
        "weight of each inner layer's interpolation error e2 / N_f by a Gaussian kernel (Yoo & Owhadi 2021)",
    )

    def own_loss(self, config: ConfigView) -> Callable[..., Loss]:
        from kfx.optimizers.classification import ClassificationLoss

        return partial(ClassificationLoss, self.dropout, self.inner_weight, config.regularization.build())

    def with_own_parameters(self, kernel: Kernel, x: torch.Tensor, y: torch.Tensor, rng: np.random.Generator) -> Kernel:
        from kfx.kernels.with_head import KernelWithHead

        self.require_classes(y)
        return KernelWithHead.over(kernel, x[:1], y.shape[1], rng)

    def recorded(self, kernel: Any, values: Mapping[str, object]) -> Kernel:
        import torch

        from kfx.kernels.with_head import BIAS, WEIGHT, KernelWithHead

        return KernelWithHead(kernel, *(torch.as_tensor(values[name]) for name in (WEIGHT, BIAS)))

    def check_start(self, config: ConfigView, kernel: Kernel) -> None:
        """Raise ConfigError where the inner layers are to be regularized and the network is not a chain of layers."""
        if self.inner_weight and not getattr(kernel, "has_layers", False):
            raise ConfigError("objective.inner_weight: takes a network that is a Sequential of layers; set 0")
