"""Kernels that depend on the inner product x·x' alone. Images are treated as vectors of their pixels."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar, Unpack

import torch

from kfx.kernels import options
from kfx.kernels.base import Kernel
from kfx.kernels.covariance import Pull
from kfx.kernels.parameters import Bounds, Training
from kfx.numerics.arrays import as_rows


class DotProduct(Kernel):
    """K(x, x') = κ(x·x'). A subclass gives κ and its derivatives."""

    @abc.abstractmethod
    def _profile(self, product: torch.Tensor) -> torch.Tensor:
        """Return κ(x·x'), in the shape of `product`."""

    @abc.abstractmethod
    def _slopes(self, product: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return ∂κ/∂(x·x'), (n, n), and ∂κ/∂θ, (n, n), for each parameter θ, by name."""

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        a = as_rows(x)
        return self._profile(a @ (a if y is None else as_rows(y)).mT)

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return self._profile(as_rows(x).square().sum(dim=1))

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        points = as_rows(x)
        product = points @ points.mT

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[dict[str, float], torch.Tensor | None]:
            slope, to_parameters = self._slopes(product)
            by_name = {name: float((cotangent * each).sum()) for name, each in to_parameters.items()}
            if not inputs:
                return by_name, None
            weights = cotangent * slope
            return by_name, (2 * weights @ points.to(weights)).reshape(x.shape)

        return self._profile(product), pull


class Linear(DotProduct):
    """x·x' + σ_b², where σ_b² ≥ 0 is `bias_variance` (scikit-learn's DotProduct)."""

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.LinearOption.default_bounds()

    def __init__(self, bias_variance: float = options.LinearOption.bias_variance, **training: Unpack[Training]) -> None:
        super().__init__({"bias_variance": bias_variance}, **training)

    def _profile(self, product: torch.Tensor) -> torch.Tensor:
        return product + self._scalar("bias_variance")

    def _slopes(self, product: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        ones = torch.ones_like(product)
        return ones, {"bias_variance": ones}


class Polynomial(DotProduct):
    """(γ x·x' + σ_b²)^degree with `gamma` γ > 0, `bias_variance` σ_b² ≥ 0 and a whole `degree` ≥ 1.

    It equals scikit-learn's `polynomial_kernel` with coef0 = σ_b².
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.PolynomialOption.default_bounds()

    def __init__(
        self,
        degree: int = options.PolynomialOption.degree,
        gamma: float = options.PolynomialOption.gamma,
        bias_variance: float = options.PolynomialOption.bias_variance,
        **training: Unpack[Training],
    ) -> None:
        options.PolynomialOption.require(degree=degree)
        super().__init__({"gamma": gamma, "bias_variance": bias_variance}, **training)
        self.degree = int(degree)

    def _base(self, product: torch.Tensor) -> torch.Tensor:
        return product * self._scalar("gamma") + self._scalar("bias_variance")

    def _profile(self, product: torch.Tensor) -> torch.Tensor:
        return self._base(product).pow(self.degree)

    def _slopes(self, product: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        to_base = self._base(product).pow(self.degree - 1).mul_(self.degree)
        return to_base * self._scalar("gamma"), {"gamma": to_base * product, "bias_variance": to_base}
