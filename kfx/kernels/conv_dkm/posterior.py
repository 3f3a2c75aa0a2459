"""The output layer: a Gaussian posterior over the outputs at the inducing points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch

from kfx.kernels.conv_dkm.gram import InducingGram, factor, inverse_factor
from kfx.kernels.conv_dkm.kernel import ConvDKM
from kfx.kernels.conv_dkm.likelihoods import Likelihood, likelihood
from kfx.kernels.parameters import ANYWHERE, Bounds, Value
from kfx.kernels.prediction import Prediction
from kfx.kernels.wrapped import Extended
from kfx.numerics.arrays import as_kind

MEAN, ROOT = "output.mean", "output.root"
_BLOCK = 250


@dataclass(frozen=True)
class Outputs:
    """The posterior of the outputs at n points.

    mean: (n, outputs). variance: of each output of a point, (n,). divergence: KL(q ‖ p) of each output, (outputs,).
    """

    mean: torch.Tensor
    variance: torch.Tensor
    divergence: torch.Tensor


class WithPosterior(Extended[ConvDKM]):
    """`kernel` with a posterior q(f_i) = N(μ, L Lᵀ/P) of each output at the inducing points.

    μ is a column of `output.mean`, (P, outputs). L is `output.root`, (P, P), shared by all outputs. Gram matrices do
    not depend on the posterior.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {MEAN: ANYWHERE, ROOT: ANYWHERE}

    def __init__(self, kernel: ConvDKM, mean: torch.Tensor, root: torch.Tensor) -> None:
        super().__init__(kernel, {MEAN: mean, ROOT: root}, signed=(MEAN, ROOT))

    @classmethod
    def over(cls, kernel: ConvDKM, x: torch.Tensor, outputs: int, rng: np.random.Generator) -> Self:
        """Return `kernel` with a posterior whose μ and L are standard normal numbers.

        x: points, (n, …), which give the dtype and device.
        """
        inducing = kernel.architecture.inducing[-1]
        return cls(kernel, *(as_kind(drawn, x) for drawn in _drawn(inducing, outputs, rng)))

    @property
    def posterior(self) -> dict[str, torch.Tensor]:
        """`output.mean`, (P, outputs), and `output.root`, (P, P), by name."""
        return self._own

    @property
    def likelihood(self) -> Likelihood:
        return likelihood(self.kernel.likelihood, self.kernel.noise_variance)

    def predict(self, x: torch.Tensor) -> Prediction:
        kernel, own = self.kernel.fixed_on(x), {name: value.to(x) for name, value in self.posterior.items()}
        parts = [outputs(kernel.top(block), own) for block in x.split(_BLOCK)]
        mean, variance = torch.cat([part.mean for part in parts]), torch.cat([part.variance for part in parts])
        return self.likelihood.predicted(mean, variance)

    def fresh(self, rng: np.random.Generator) -> dict[str, Value]:
        mean = self.posterior[MEAN]
        drawn = zip((MEAN, ROOT), _drawn(mean.shape[0], mean.shape[1], rng), strict=True)
        return {**super().fresh(rng), **{name: as_kind(value, mean) for name, value in drawn}}


def outputs(k: InducingGram, own: Mapping[str, torch.Tensor]) -> Outputs:
    """Return the posterior of the outputs at each point (Milsom et al. 2023, eq. 79 to 85).

    Mean K_ti K_ii⁻¹ μ, variance k − diag(K_ti K_ii⁻¹ K_it) + diag(K_ti K_ii⁻¹ A K_ii⁻¹ K_it) with A = L Lᵀ/P, and
    KL(N(μ, A) ‖ N(0, K_ii)) of each output.
    k: the top layer's Gram matrix, ti (n, P). own: `output.mean`, (P, outputs), and `output.root`, (P, P).
    """
    lower = factor(k.ii)
    explaining = inverse_factor(lower)
    mean, root = own[MEAN].double(), own[ROOT].double() / math.sqrt(len(lower))
    whitened_mean, whitened_root = explaining.mT @ mean, explaining.mT @ root
    features = k.ti @ explaining.to(k.ti)
    rest = (k.t - features.square().sum(dim=-1)).clamp(min=0)
    variance = rest + (features @ whitened_root.to(k.ti)).square().sum(dim=-1)
    log_determinant = 2 * torch.linalg.slogdet(whitened_root).logabsdet
    common = whitened_root.square().sum() - log_determinant - len(lower)
    return Outputs(features @ whitened_mean.to(k.ti), variance, 0.5 * (common + whitened_mean.square().sum(dim=0)))


def _drawn(inducing: int, outputs: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(inducing, outputs)), rng.normal(size=(inducing, inducing))
