"""Predictions by a kernel's own head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch


@runtime_checkable
class Headed(Protocol):
    """A kernel with a head of its own, beside kernel ridge regression."""

    def predict(self, x: torch.Tensor) -> Prediction:
        """Return the predictions of the head at points x, (n, …)."""


@dataclass(frozen=True)
class Prediction:
    """Predictions at n points, of classes or of a regression.

    outputs: (n, outputs); the predicted class is the largest. log_probabilities: of the classes, (n, classes).
    variance: of each output of a regression, (n,). Either `log_probabilities` or `variance` is given.
    """

    outputs: torch.Tensor
    log_probabilities: torch.Tensor | None = None
    variance: torch.Tensor | None = None

    @classmethod
    def of_logits(cls, logits: torch.Tensor) -> Prediction:
        """Return the prediction of classes with log-probabilities log softmax(logits). logits: (n, classes)."""
        return cls(logits, torch.log_softmax(logits, dim=1))

    def log_likelihood(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the log-likelihood of each point's target, (n,). targets: (n, outputs), one-hot for classes."""
        targets = targets.to(self.outputs)
        if self.log_probabilities is not None:
            return (self.log_probabilities * targets).sum(dim=1)
        assert self.variance is not None
        normal = torch.distributions.Normal(self.outputs, self.variance.sqrt()[:, None])
        return normal.log_prob(targets).sum(dim=1)

    def calibration_error(self, targets: torch.Tensor, bins: int = 15) -> float:
        """Return the expected calibration error (Guo et al. 2017); NaN for a prediction without log-probabilities.

        It is Σ_b (share of points in bin b) · |accuracy − mean confidence| over equal bins of confidence.
        targets: (n, classes), one-hot.
        """
        if self.log_probabilities is None:
            return float("nan")
        confidence, found = self.log_probabilities.double().exp().max(dim=1)
        right = (found == targets.argmax(dim=1).to(found.device)).double()
        place = (confidence * bins).ceil().clamp(1, bins).long() - 1
        gaps = torch.zeros(bins, dtype=torch.float64, device=found.device).index_add_(0, place, right - confidence)
        return float(gaps.abs().sum() / len(found))
