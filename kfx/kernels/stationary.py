"""Kernels of the distance r = ‖x − x'‖ alone. Images count as vectors of their pixels."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
import torch

from kfx.kernels import options
from kfx.kernels.base import Kernel, Pull
from kfx.kernels.parameters import Bounds
from kfx.numerics.arrays import by_one_thread


class Stationary(Kernel):
    """K(x, x') = κ(r²). A subclass gives κ and its derivatives; distances are computed once a call."""

    @abc.abstractmethod
    def _profile(self, r2: torch.Tensor) -> torch.Tensor:
        """κ(r²)."""

    @abc.abstractmethod
    def _pull(
        self, cotangent: torch.Tensor, r2: torch.Tensor, gram: torch.Tensor, distances: bool
    ) -> tuple[dict[str, float], torch.Tensor | None]:
        """From the cotangent of κ(r²) = gram, which is known, to the gradients to each parameter and, where they are
        wanted, the cotangent of r²."""

    @staticmethod
    def _squared_distances(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return squared_distances(x, y)

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return self._profile(self._squared_distances(x, y))

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_full((1,), self._variance()).expand(len(x))

    def _variance(self) -> float:
        """κ(0)."""
        return 1.0

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        r2 = self._squared_distances(x, None)
        gram = self._profile(r2)

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[dict[str, float], torch.Tensor | None]:
            by_name, weights = self._pull(cotangent, r2, gram, inputs)
            if weights is None:
                return by_name, None
            # ∂(r²_ij)/∂x_i = 2 (x_i − x_j), and the pair stands in both triangles.
            points = x.reshape(len(x), -1).to(weights)
            gradient = 4 * (weights.sum(dim=1, keepdim=True) * points - weights @ points)
            return by_name, gradient.reshape(x.shape)

        return gram, pull


def _inner(a: torch.Tensor, b: torch.Tensor) -> float:
    """Σ_ij a_ij b_ij."""
    return float(torch.dot(a.reshape(-1), b.reshape(-1).to(a.dtype)))


def _exp_(x: torch.Tensor) -> torch.Tensor:
    """exp(x), in place."""
    if not by_one_thread(x):
        return x.exp_()
    array = x.numpy()
    np.exp(array, out=array)
    return x


def squared_distances(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    """‖x_i − y_j‖², (len(x), len(y)), by one matrix product; exactly 0 on the diagonal of x against itself."""
    a = x.reshape(len(x), -1)
    centre = a[:1]  # distances do not change, cancellation shrinks; a mean would cost more
    a = a - centre
    b = a if y is None else y.reshape(len(y), -1) - centre
    norms = a.square().sum(dim=1)
    others = norms if y is None else b.square().sum(dim=1)
    r2 = (norms[:, None] + others).addmm_(a, b.mT, alpha=-2.0).clamp_(min=0.0)
    if y is None:
        r2.fill_diagonal_(0.0)
    return r2


class RBF(Stationary):
    """exp(−r² / (2 σ²)), σ > 0: `sigma`, a length in the units of x."""

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.RBF.default_bounds()

    def __init__(
        self,
        sigma: float = options.RBF.sigma,
        *,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        super().__init__({"sigma": sigma}, trainable, bounds)

    def _profile(self, r2: torch.Tensor) -> torch.Tensor:
        sigma = self._scalar("sigma")
        return _exp_(r2 * (-0.5 / sigma**2))

    def _pull(
        self, cotangent: torch.Tensor, r2: torch.Tensor, gram: torch.Tensor, distances: bool
    ) -> tuple[dict[str, float], torch.Tensor | None]:
        sigma, weights = self._scalar("sigma"), cotangent * gram
        return {"sigma": _inner(weights, r2) / sigma**3}, weights * (-0.5 / sigma**2) if distances else None


class RationalQuadratic(Stationary):
    """(β² + γ r²)^(−α), α, β, γ > 0 (Darcy 2020, eq. 1.9, with the norm squared).

    γ stays 1 unless named in `trainable`: with α and β alone the kernel's length is β.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.RationalQuadratic.default_bounds()
    default_trainable: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    def __init__(
        self,
        alpha: float = options.RationalQuadratic.alpha,
        beta: float = options.RationalQuadratic.beta,
        gamma: float = options.RationalQuadratic.gamma,
        *,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        super().__init__({"alpha": alpha, "beta": beta, "gamma": gamma}, trainable, bounds)

    def _base(self, r2: torch.Tensor) -> torch.Tensor:
        return r2 * self._scalar("gamma") + self._scalar("beta") * self._scalar("beta")

    def _profile(self, r2: torch.Tensor) -> torch.Tensor:
        return self._base(r2).pow(-self._scalar("alpha"))

    def _variance(self) -> float:
        return float(self._scalar("beta") ** (-2 * self._scalar("alpha")))

    def _pull(
        self, cotangent: torch.Tensor, r2: torch.Tensor, gram: torch.Tensor, distances: bool
    ) -> tuple[dict[str, float], torch.Tensor | None]:
        alpha, beta, gamma = (self._scalar(name) for name in ("alpha", "beta", "gamma"))
        base, weights = self._base(r2), cotangent * gram
        to_base = (weights / base).mul_(-alpha)
        by_name = {
            "alpha": -_inner(weights, base.log()),
            "beta": 2 * beta * float(to_base.sum()),
            "gamma": _inner(to_base, r2),
        }
        return by_name, to_base * gamma if distances else None


class Matern(Stationary):
    """Matérn with smoothness ν, as in scikit-learn; `sigma` is its length, a = √(2ν) r / σ:

    ν = 1/2: exp(−a).    ν = 3/2: (1 + a) exp(−a).    ν = 5/2: (1 + a + a²/3) exp(−a).
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.Matern.default_bounds()

    def __init__(
        self,
        sigma: float = options.Matern.sigma,
        nu: float = options.Matern.nu,
        *,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        if nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"Matern: nu must be 0.5, 1.5 or 2.5, got {nu!r}")
        super().__init__({"sigma": sigma}, trainable, bounds)
        self.nu = nu

    @staticmethod
    def _squared_distances(x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        # By differences: r itself matters here, and the square root would halve the digits of a matrix product's r².
        a = x.reshape(len(x), -1)
        b = a if y is None else y.reshape(len(y), -1)
        return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_()

    def _scaled(self, r2: torch.Tensor) -> torch.Tensor:
        return r2.sqrt() * (math.sqrt(2 * self.nu) / self._scalar("sigma"))

    def _profile(self, r2: torch.Tensor) -> torch.Tensor:
        a = self._scaled(r2)
        value = _exp_(-a)
        if self.nu > 0.5:
            value *= 1 + a if self.nu == 1.5 else 1 + a + a.square() / 3
        return value

    def _pull(
        self, cotangent: torch.Tensor, r2: torch.Tensor, gram: torch.Tensor, distances: bool
    ) -> tuple[dict[str, float], torch.Tensor | None]:
        a, sigma = self._scaled(r2), self._scalar("sigma")
        factor = {
            0.5: lambda: torch.where(a > 0, 1 / a, 0.0),  # a cusp at r = 0, where nothing is to be moved
            1.5: lambda: torch.ones_like(a),
            2.5: lambda: (1 + a) / 3,
        }[self.nu]()
        to_r2 = factor.mul_(torch.exp(-a)).mul_(-self.nu / sigma**2) * cotangent
        return {"sigma": _inner(to_r2, r2) * (-2 / sigma)}, to_r2 if distances else None


class Laplace(Kernel):
    """exp(−‖x − x'‖₁ / σ), the sum of absolute differences, as scikit-learn's `laplacian_kernel`; with one feature
    Matérn's ν = 1/2."""

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.Laplace.default_bounds()

    def __init__(
        self,
        sigma: float = options.Laplace.sigma,
        *,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        super().__init__({"sigma": sigma}, trainable, bounds)

    def _distances(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        a = x.reshape(len(x), -1)
        return torch.cdist(a, a if y is None else y.reshape(len(y), -1), p=1.0)

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return _exp_(self._distances(x, y) / -self._scalar("sigma"))

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(len(x))

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        distances, sigma = self._distances(x, None), self._scalar("sigma")
        gram = _exp_(distances / -sigma)

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[dict[str, float], torch.Tensor | None]:
            weights = cotangent * gram / -sigma
            by_name = {"sigma": float((weights * distances).sum()) / -sigma}
            if not inputs:
                return by_name, None
            points = x.reshape(len(x), -1).to(weights)
            columns = [2 * (weights * (column[:, None] - column[None, :]).sign()).sum(dim=1) for column in points.mT]
            return by_name, torch.stack(columns, dim=1).reshape(x.shape)

        return gram, pull
