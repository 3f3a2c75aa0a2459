"""A kernel for tables: the sum of a smooth kernel and a rough one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self, Unpack

import numpy as np
import torch

from kfx.kernels import stationary
from kfx.kernels.ard import ARD
from kfx.kernels.base import Composed
from kfx.kernels.combination_options import SmoothAndRoughOption
from kfx.kernels.covariance import Pull
from kfx.kernels.parameters import Bounds, Given, Training, Value
from kfx.kernels.stationary import Laplace, Matern


class SmoothAndRough(Composed):
    """k(x, x') + c² exp(−Σ_d |x_d − x'_d| / s_d), where k is Matérn's kernel with ν = 5/2 and the length 1.

    roughness: c > 0. stretch: s, (features,), > 0, or a number for all features. `for_features`, which a fit calls,
    makes of a number t the stretch t √D of each of D features, because a sum of D differences is up to √D times their
    distance, or the nearer end of its bounds.

    The smooth part follows what varies slowly with a feature, the rough part steps and features of few values. In `ARD`
    its lengths are those of the smooth part, and s ℓ those of the rough one, so that a feature can matter to one part
    alone.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {
        name: SmoothAndRoughOption.default_bounds()[name] for name in ("roughness", "stretch")
    }

    def __init__(
        self, roughness: float = SmoothAndRoughOption.roughness, stretch: Given = 1.0, **training: Unpack[Training]
    ) -> None:
        bounds = {**self.default_bounds, **(training.get("bounds") or {})}
        parts, names = [Matern(1.0, 2.5), ARD(Laplace(1.0), stretch)], [{}, {"lengths": "stretch"}]
        super().__init__(parts, names, {"roughness": roughness}, training.get("trainable"), bounds)

    def require_good_on(self, x: torch.Tensor) -> None:
        stretch = self.parts[1].parameters["lengths"]
        if isinstance(stretch, np.ndarray) and x.shape[1:] != stretch.shape:
            raise ValueError(f"points have {x[0].numel()} features, and stretch {len(stretch)} numbers")
        super().require_good_on(x)

    def for_features(self, count: int, names: Sequence[str] = ()) -> Self:
        smooth, rough = self.parts
        stretch = rough.parameters["lengths"]
        if isinstance(stretch, float):
            low, high = self.limits["stretch"]
            rough = rough.with_parameters(lengths=min(max(stretch * math.sqrt(count), low), high))
        return self._with_parts([smooth, rough.for_features(count, names)])

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        (smooth, rough), others = self.parts, x if y is None else y
        gram, c = smooth._gram(x, y), self._scalar("roughness")
        rows = max(1, stationary.AT_A_TIME // max(1, len(others)))
        for some in range(0, len(x), rows):  # whole, the rough part would take as much memory again
            gram[some : some + rows].add_(rough._gram(x[some : some + rows], others), alpha=c**2)
        return gram

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_full((1,), 1 + self._scalar("roughness") ** 2).expand(len(x))

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        (smooth, pull_smooth), (rough, pull_rough) = (part._pullback(x) for part in self.parts)
        c = self._scalar("roughness")

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            _, moved = pull_smooth(cotangent, inputs)
            to_rough, moved_too = pull_rough(cotangent * c**2, inputs)
            own = {"roughness": 2 * c * float((cotangent * rough).sum()), "stretch": to_rough["lengths"]}
            return own, None if moved is None or moved_too is None else moved + moved_too

        return smooth.add(rough, alpha=c**2), pull
