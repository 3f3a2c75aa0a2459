"""Normalization and rescaling of Gram matrices, apart for inducing points and data (Milsom et al. 2023, appendix C)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from kfx.kernels.conv_dkm.gram import InducingGram


@dataclass(frozen=True)
class Normalizing:
    """Which variances the blocks are divided by, and which learned scales they are multiplied by afterwards.

    inducing: `none`; `batch`, the mean of G_ii's diagonal; `local`, each inducing point's own variance.
    points: `none`; `batch`, the mean of g over images and positions; `image`, over the positions of an image;
        `location`, over the images at a position; `local`, each position's own variance.
    inducing_scale: `none`; `batch`, one scale; `local`, one for each inducing point.
    point_scale: `none`; `batch`, one scale; `location`, one for each position.
    """

    inducing: str = "local"
    points: str = "local"
    inducing_scale: str = "batch"
    point_scale: str = "batch"

    def without_space(self) -> Normalizing:
        """Return the same normalization for points without positions, over images or for each image."""
        points = {"location": "batch", "image": "local"}.get(self.points, self.points)
        return replace(self, points=points, point_scale={"location": "batch"}.get(self.point_scale, self.point_scale))


class Normalization(nn.Module):
    """G_ii / (n_i n_iᵀ), G_ti / (n_t n_i) and g / n_t², n the roots of mean variances; then times learned scales e^s.

    how: which variances and scales. inducing: P. size: height and width of the maps; None after the top layer.
    For `batch` and `location`, `mean` is the fixed mean variance of the points; 0 means that of the present points.
    """

    label = ""
    inducing_scale: nn.Parameter | None
    point_scale: nn.Parameter | None

    def __init__(self, how: Normalizing, inducing: int, size: tuple[int, int] | None) -> None:
        super().__init__()
        self.how = how if size is not None else how.without_space()
        shapes = {"none": None, "batch": (), "local": (inducing,), "location": size}
        for name, kind in (("inducing_scale", self.how.inducing_scale), ("point_scale", self.how.point_scale)):
            shape = shapes[kind]
            self.register_parameter(name, None if shape is None else nn.Parameter(torch.zeros(shape)))
        self.mean: nn.Parameter | None = None
        if self.how.points in ("batch", "location"):
            shape = shapes[self.how.points]
            assert shape is not None
            self.mean = nn.Parameter(torch.zeros(shape), requires_grad=False)

    def forward(self, g: InducingGram) -> InducingGram:
        inducing, (points, means) = self._inducing(g.ii), self._points(g.t)
        if self.inducing_scale is not None:
            inducing = inducing * self.inducing_scale.double().exp()
        if self.point_scale is not None:
            points = points * self.point_scale.exp()
        by_inducing = inducing.expand(len(g.ii))
        if points.ndim:
            ti = g.ti * by_inducing.to(g.ti) * points.expand(g.t.shape)[..., None]
        else:
            ti = g.ti * (by_inducing.to(g.ti) * points)
        made = g.having(g.ii * by_inducing[:, None] * by_inducing, ti, g.t * points.square())
        return replace(made, means={**g.means, **means})

    def _inducing(self, ii: torch.Tensor) -> torch.Tensor:
        match self.how.inducing:
            case "batch":
                return ii.diagonal().mean().rsqrt()
            case "local":
                return ii.diagonal().rsqrt()
        return ii.new_ones(())

    def _points(self, t: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        match self.how.points:
            case "local":
                return t.rsqrt(), {}
            case "image":
                return t.mean(dim=(1, 2), keepdim=True).rsqrt(), {}
            case "none":
                return t.new_ones(()), {}
        assert self.mean is not None
        mean = t.mean(dim=0) if self.how.points == "location" else t.mean()
        return torch.where(self.mean > 0, self.mean, mean).rsqrt(), {self.label: mean}
