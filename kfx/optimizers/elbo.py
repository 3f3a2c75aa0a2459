"""The option `objective=elbo`: the evidence lower bound of a deep kernel machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kfx.config.fields import number, word
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


@option(
    "objective", "elbo", "Negative evidence lower bound per training point, for kernel=conv_dkm (Milsom et al. 2023)"
)
class ElboOption(HeadOption):
    rules = rows(refuses(lambda _, c: not c.kernel.is_deep, "trains a deep kernel machine; use kernel=conv_dkm"))
    symbol = "−ELBO"
    is_of_deep_kernels = True
    quick = ("kernel=conv_dkm", "kernel.architecture=small", "kernel.inducing=[4,6,8]")

    samples: int = number(
        100, "whole >= 1 and <= 100000", "number of samples of the outputs for E log p, with likelihood=categorical"
    )
    kl: str = word("sum | mean", "sum or mean of the KL divergences of the outputs; the public scripts take the mean")

    def own_loss(self, config: ConfigView) -> Callable[..., Loss]:
        from kfx.optimizers.evidence import EvidenceLoss

        return partial(EvidenceLoss, self.samples, self.kl == "mean", config.regularization.build())

    def columns(self, kernel: Kernel) -> tuple[str, ...]:
        of_layer = ".log_scale"
        layers = [f"penalty.{name.removesuffix(of_layer)}" for name in kernel.parameters if name.endswith(of_layer)]
        return "expected_log_likelihood", "kl", *layers, "train_accuracy"

    def with_own_parameters(self, kernel: Any, x: torch.Tensor, y: torch.Tensor, rng: np.random.Generator) -> Kernel:
        from kfx.kernels.conv_dkm.posterior import WithPosterior

        self.require_classes(y)
        try:
            started = kernel.with_patches(x, rng)
        except ValueError as error:
            raise ConfigError(f"kernel.inducing: {error}") from error
        return WithPosterior.over(started, x, y.shape[1], rng)

    def recorded(self, kernel: Any, values: Mapping[str, object]) -> Kernel:
        import torch

        from kfx.kernels.conv_dkm.posterior import MEAN, ROOT, WithPosterior

        return WithPosterior(kernel, *(torch.as_tensor(values[name]) for name in (MEAN, ROOT)))
