"""What a kernel's own head predicts of points."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Prediction:
    """outputs: (n, outputs), the largest of which is the class. log_probabilities: of the classes, (n, classes).
    variance: of a regression's outputs, (n,). One of the last two is there."""

    outputs: torch.Tensor
    log_probabilities: torch.Tensor | None = None
    variance: torch.Tensor | None = None

    @classmethod
    def of_logits(cls, logits: torch.Tensor) -> Prediction:
        return cls(logits, torch.log_softmax(logits, dim=1))

    def log_likelihood(self, targets: torch.Tensor) -> torch.Tensor:
        """Of each point's target, (n,). targets: (n, outputs), one-hot where there are classes."""
        targets = targets.to(self.outputs)
        if self.log_probabilities is not None:
            return (self.log_probabilities * targets).sum(dim=1)
        assert self.variance is not None
        normal = torch.distributions.Normal(self.outputs, self.variance.sqrt()[:, None])
        return normal.log_prob(targets).sum(dim=1)

    def calibration_error(self, targets: torch.Tensor, bins: int = 15) -> float:
        """Σ over equal bins of confidence of |accuracy − mean confidence| · share (Guo et al. 2017); NaN where no class
        has a probability."""
        if self.log_probabilities is None:
            return float("nan")
        confidence, found = self.log_probabilities.double().exp().max(dim=1)
        right = (found == targets.argmax(dim=1).to(found.device)).double()
        place = (confidence * bins).ceil().clamp(1, bins).long() - 1
        gaps = torch.zeros(bins, dtype=torch.float64, device=found.device).index_add_(0, place, right - confidence)
        return float(gaps.abs().sum() / len(found))
