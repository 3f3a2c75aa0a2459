"""Likelihoods of the outputs: Gaussian, in closed form, and categorical, by Monte Carlo (Milsom et al. 2023, D.2)."""

from __future__ import annotations

import abc
import math

import torch

from kfx.kernels.prediction import Prediction

_PREDICTED_WITH = 1000


class Likelihood(abc.ABC):
    """A likelihood p(y | f) of independent, normally distributed outputs f."""

    @abc.abstractmethod
    def expected(
        self, mean: torch.Tensor, variance: torch.Tensor, y: torch.Tensor, samples: int, generator: torch.Generator
    ) -> torch.Tensor:
        """Return the mean over points of E log p(y | f), a scalar.

        mean, y: (n, outputs). variance: of each output of a point, (n,). samples, generator: for Monte Carlo.
        """

    @abc.abstractmethod
    def predicted(self, mean: torch.Tensor, variance: torch.Tensor) -> Prediction:
        """Return the prediction at unseen points, which for each point is independent of the other points.

        mean: (n, outputs). variance: of each output of a point, (n,).
        """


class Gaussian(Likelihood):
    """N(y; f, noise), with E log p = log N(y; mean, noise) − variance / (2 noise) for each output (eq. 77)."""

    def __init__(self, noise: float) -> None:
        self.noise = noise

    def expected(
        self, mean: torch.Tensor, variance: torch.Tensor, y: torch.Tensor, samples: int, generator: torch.Generator
    ) -> torch.Tensor:
        squares = (y.to(mean) - mean).square() + variance[:, None]
        each = -0.5 * math.log(2 * math.pi * self.noise) - squares / (2 * self.noise)
        return each.sum(dim=1).mean()

    def predicted(self, mean: torch.Tensor, variance: torch.Tensor) -> Prediction:
        return Prediction(mean, variance=variance + self.noise)


class Categorical(Likelihood):
    """softmax(f)_y, by samples of f (eq. 86 to 88); a prediction is the mean of the samples' probabilities."""

    def expected(
        self, mean: torch.Tensor, variance: torch.Tensor, y: torch.Tensor, samples: int, generator: torch.Generator
    ) -> torch.Tensor:
        normal = torch.randn(samples, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        f = mean + variance.sqrt()[:, None] * normal
        return ((f * y.to(mean)).sum(dim=-1) - torch.logsumexp(f, dim=-1)).mean()

    def predicted(self, mean: torch.Tensor, variance: torch.Tensor) -> Prediction:
        generator = torch.Generator(mean.device).manual_seed(0)
        shape = _PREDICTED_WITH, 1, mean.shape[1]
        normal = torch.randn(shape, generator=generator, dtype=mean.dtype, device=mean.device)
        parts = []
        for m, v in zip(mean.split(100), variance.split(100), strict=True):
            f = m + v.sqrt()[:, None] * normal
            parts.append(torch.logsumexp(torch.log_softmax(f, dim=-1), dim=0) - math.log(len(f)))
        log_probabilities = torch.cat(parts)
        return Prediction(log_probabilities, log_probabilities)


def likelihood(name: str, noise_variance: float) -> Likelihood:
    """Return the likelihood `categorical` or `gaussian`; noise_variance: of the Gaussian one."""
    return Gaussian(noise_variance) if name == "gaussian" else Categorical()
