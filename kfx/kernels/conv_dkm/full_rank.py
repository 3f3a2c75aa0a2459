"""The objective of a deep kernel machine without inducing points, to compare the sparse one with (Milsom et al. 2023,
eq. 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def objective(
    start: torch.Tensor,
    grams: Sequence[torch.Tensor],
    y: torch.Tensor,
    noise_variance: float,
    strength: float,
    weight_variance: float = 1.0,
    bias_variance: float = 0.1,
) -> torch.Tensor:
    """Return log p(Y | K(G_L)) − ν Σ_l KL(N(0, G_l) ‖ N(0, K(G_{l−1}))), a scalar, with the arc-cosine kernel K of
    `Arccos` (Milsom et al. 2023, eq. 5). It needs O(L n³) operations.

    start: G_0, the Gram matrix of the n training points, (n, n), positive definite. grams: G_1 to G_L, (n, n) each;
    with G_l = K(G_{l−1}) all divergences are 0, and the model is the NNGP. y: targets, (n, outputs), of independent
    outputs with Gaussian noise of `noise_variance` > 0. strength: ν ≥ 0. Differentiable by autograd. Raises ValueError
    where a matrix is not positive definite.
    """
    zero, divergence, previous = start.new_zeros(len(start)), start.new_zeros(()), start
    for gram in grams:
        kernel = _normal(zero, _arccos(previous, weight_variance, bias_variance))
        divergence = divergence + torch.distributions.kl_divergence(_normal(zero, gram), kernel)
        previous = gram
    noise = noise_variance * torch.eye(len(start), dtype=start.dtype, device=start.device)
    outputs = _normal(zero, _arccos(previous, weight_variance, bias_variance) + noise)
    return outputs.log_prob(y.mT).sum() - strength * divergence


def _arccos(gram: torch.Tensor, weight_variance: float, bias_variance: float) -> torch.Tensor:
    variance = gram.diagonal()
    lengths = (variance[:, None] * variance).sqrt()
    off = 1 - torch.eye(len(gram), dtype=gram.dtype, device=gram.device)  # the angle of a point with itself is 0
    cosine = (gram / lengths * off).clamp(-1, 1)
    angle = torch.arccos(cosine)
    made = off * lengths * (torch.sin(angle) + (math.pi - angle) * cosine) / math.pi + torch.diag(variance)
    return weight_variance * made + bias_variance


def _normal(mean: torch.Tensor, covariance: torch.Tensor) -> torch.distributions.MultivariateNormal:
    return torch.distributions.MultivariateNormal(mean, covariance)
