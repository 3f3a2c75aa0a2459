"""Kernels of the distance r = ‖x − x'‖ alone. Images count as vectors of their pixels."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from kfx.kernels import options
from kfx.kernels.base import Kernel, Pull, SmallPullback
from kfx.kernels.parameters import Bounds
from kfx.numerics.arrays import Array, as_kind, as_tensor, by_one_thread, diagonal, in_kind, is_small, numpy_if_small
from kfx.numerics.outer_products import OuterProducts, with_ones

_FEW = 64  # coordinates of a point up to which sums of differences are faster than a matrix product


class Stationary(Kernel):
    """K(x, x') = κ(r²). A subclass gives κ and its derivatives, for matrices in torch and small ones in NumPy alike;
    distances are computed once a call."""

    takes_outer_products = True

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        if device.type == "cpu" and dtype in (torch.float32, torch.float64):
            from kfx.numerics import small_loops

            small_loops.compile_for(np.float32 if dtype == torch.float32 else np.float64)

    @abc.abstractmethod
    def _profile(self, r2: Any) -> Any:
        """κ(r²)."""

    @abc.abstractmethod
    def _slope(self, r2: Any, gram: Any) -> Any:
        """∂κ/∂(r²), with κ(r²) = gram known."""

    @abc.abstractmethod
    def _gradients(self, inner: Callable[[Any], float], r2: Any, gram: Any) -> dict[str, float]:
        """`inner` of ∂κ/∂(parameter) for each of them: the sum of its entries, weighted by a cotangent."""

    @staticmethod
    def _squared_distances(x: Array, y: Array | None) -> Any:
        return squared_distances(x, y)

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        if is_small(x) and (y is None or is_small(y)):
            return as_tensor(self._profile(self._squared_distances(x.numpy(), None if y is None else y.numpy())))
        gram: torch.Tensor = self._profile(self._squared_distances(x, y))
        return gram

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_full((1,), self._variance()).expand(len(x))

    def _fill_diagonal(self, gram: torch.Tensor, x: torch.Tensor) -> None:
        diagonal(numpy_if_small(gram))[:] = self._variance()

    def is_finite_at(self, x: torch.Tensor) -> bool:
        return self._variance() <= torch.finfo(x.dtype).max

    def _variance(self) -> float:
        """κ(0)."""
        return 1.0

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        rows = numpy_if_small(x.reshape(len(x), -1))
        gram, pull_rows = self.pullback_of_rows(rows)

        def pull(cotangent: Any, inputs: bool) -> tuple[dict[str, float], torch.Tensor | None]:
            given = cotangent.of_kind(rows) if isinstance(cotangent, OuterProducts) else cotangent
            if isinstance(rows, np.ndarray) and isinstance(given, torch.Tensor):
                given = given.numpy()
            by_name, moved = pull_rows(given, inputs)
            return by_name, None if moved is None else as_tensor(moved).reshape(x.shape)

        return as_tensor(gram), pull

    def small_pullback(self, x: torch.Tensor) -> SmallPullback | None:
        if type(self)._pullback is not Stationary._pullback or not is_small(x) or x.ndim < 2:
            return None
        return self.pullback_of_rows(x.numpy().reshape(len(x), -1))

    def pullback_of_rows(self, rows: Any) -> tuple[Any, Callable[[Any, bool], tuple[dict[str, float], Any]]]:
        """K of points (n, features), and the pullback, as `_pullback`: arrays in NumPy where the points are, else in
        torch; a cotangent of their kind or `OuterProducts`."""
        r2 = self._squared_distances(rows, None)
        gram = self._profile(r2)
        diagonal(gram)[:] = self._variance()

        def pull(given: Any, inputs: bool) -> tuple[dict[str, float], Any]:
            inner = given.inner if isinstance(given, OuterProducts) else partial(_inner, given)
            wide = _double(gram)  # a slope may leave float32 where the value does not
            by_name = self._gradients(inner, r2, wide)
            return by_name, self._to_points(given, self._slope(r2, wide), rows) if inputs else None

        return gram, pull

    @staticmethod
    def _to_points(given: Any, slope: Any, rows: Any) -> Any:
        """Σ_j 4 G_ij S_ij (x_i − x_j): ∂(r²_ij)/∂x_i = 2 (x_i − x_j), and the pair stands in both triangles."""
        if isinstance(given, OuterProducts) and isinstance(rows, np.ndarray) and rows.shape[1] <= _FEW:
            from kfx.numerics import small_loops

            moved = np.empty(rows.shape)
            small_loops.moved_points(slope, given.vectors, given.weights, rows, moved)
            return moved
        diagonal(slope)[:] = 0.0  # so that a point alone is not moved by round-off
        if isinstance(given, OuterProducts):
            flat = as_kind(rows, given.vectors)
            both = given.product(slope, with_ones(flat))
            return 4 * (both[:, :1] * flat - both[:, 1:])
        weights = given * slope
        flat = as_kind(rows, weights)
        return 4 * (weights.sum(axis=1, keepdims=True) * flat - weights @ flat)


def _double(x: Any) -> Any:
    return x.astype(np.float64, copy=False) if isinstance(x, np.ndarray) else x.to(torch.float64)


def _inner(a: Any, b: Any) -> float:
    """Σ_ij a_ij b_ij."""
    if isinstance(a, np.ndarray):
        return float(np.vdot(a, b))
    common = torch.promote_types(a.dtype, b.dtype)
    return float(torch.dot(a.reshape(-1).to(common), b.reshape(-1).to(common)))


def _exp_(x: Any) -> Any:
    """exp(x), in place."""
    if isinstance(x, torch.Tensor) and not (by_one_thread(x) and x.dtype in (torch.float32, torch.float64)):
        return x.exp_()
    array = x.numpy() if isinstance(x, torch.Tensor) else x
    np.exp(array, out=array)
    return x


def _log(x: Any) -> Any:
    return np.log(x) if isinstance(x, np.ndarray) else x.log()


def _by_differences(rows: np.ndarray) -> np.ndarray:
    from kfx.numerics import small_loops

    r2 = np.empty((len(rows), len(rows)), rows.dtype)
    small_loops.squared_distances(rows, r2)
    return r2


def squared_distances(x: Array, y: Array | None) -> Any:
    """‖x_i − y_j‖², (len(x), len(y)), by one matrix product; exactly 0 on the diagonal of x against itself. Of few
    points with few coordinates against themselves by differences."""
    a: Any = x.reshape(len(x), -1)
    if y is None and isinstance(a, np.ndarray) and a.shape[1] <= _FEW:
        return _by_differences(a)
    centre = a[:1]  # distances do not change, cancellation shrinks; a mean would cost more
    a = a - centre
    b = a if y is None else y.reshape(len(y), -1) - centre
    if isinstance(a, np.ndarray):
        products = a @ b.T
        norms = products.diagonal() if y is None else np.einsum("ij,ij->i", a, a)
        r2 = norms[:, None] + (norms if y is None else np.einsum("ij,ij->i", b, b))
        products *= 2
        r2 -= products
        return np.maximum(r2, 0.0, out=r2)
    norms = a.square().sum(dim=1)
    others = norms if y is None else b.square().sum(dim=1)
    r2 = (norms[:, None] + others).addmm_(a, b.mT, alpha=-2.0).clamp_(min=0.0)
    if y is None:
        r2.fill_diagonal_(0.0)
    return r2


class RBF(Stationary):
    """exp(−r² / (2 σ²)), σ > 0: `sigma`, a length in the units of x."""

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.RBFOption.default_bounds()

    def __init__(
        self,
        sigma: float = options.RBFOption.sigma,
        *,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        super().__init__({"sigma": sigma}, trainable, bounds)

    def _profile(self, r2: Any) -> Any:
        sigma = self._scalar("sigma")
        return _exp_(r2 * (-0.5 / sigma**2))

    def _slope(self, r2: Any, gram: Any) -> Any:
        return gram * (-0.5 / self._scalar("sigma") ** 2)

    def _gradients(self, inner: Callable[[Any], float], r2: Any, gram: Any) -> dict[str, float]:
        return {"sigma": inner(gram * r2) / self._scalar("sigma") ** 3}


class RationalQuadratic(Stationary):
    """(β² + γ r²)^(−α), α, β, γ > 0 (Darcy 2020, eq. 1.9, with the norm squared).

    γ stays 1 unless named in `trainable`: with α and β alone the kernel's length is β.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.RationalQuadraticOption.default_bounds()
    default_trainable: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    def __init__(
        self,
        alpha: float = options.RationalQuadraticOption.alpha,
        beta: float = options.RationalQuadraticOption.beta,
        gamma: float = options.RationalQuadraticOption.gamma,
        *,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        super().__init__({"alpha": alpha, "beta": beta, "gamma": gamma}, trainable, bounds)

    def _base(self, r2: Any) -> Any:
        return r2 * self._scalar("gamma") + self._scalar("beta") * self._scalar("beta")

    def _profile(self, r2: Any) -> Any:
        return self._base(r2) ** -self._scalar("alpha")

    def _variance(self) -> float:
        return float(self._scalar("beta") ** (-2 * self._scalar("alpha")))

    def _slope(self, r2: Any, gram: Any) -> Any:
        return gram / self._base(r2) * (-self._scalar("alpha") * self._scalar("gamma"))

    def _gradients(self, inner: Callable[[Any], float], r2: Any, gram: Any) -> dict[str, float]:
        alpha, beta, base = self._scalar("alpha"), self._scalar("beta"), self._base(r2)
        to_base = gram / base
        return {
            "alpha": -inner(gram * _log(base)),
            "beta": -2 * alpha * beta * inner(to_base),
            "gamma": -alpha * inner(to_base * r2),
        }


class Matern(Stationary):
    """Matérn with smoothness ν, as in scikit-learn; `sigma` is its length, a = √(2ν) r / σ:

    ν = 1/2: exp(−a).    ν = 3/2: (1 + a) exp(−a).    ν = 5/2: (1 + a + a²/3) exp(−a).
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.MaternOption.default_bounds()

    def __init__(
        self,
        sigma: float = options.MaternOption.sigma,
        nu: float = options.MaternOption.nu,
        *,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        if nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"Matern: nu must be 0.5, 1.5 or 2.5, got {nu!r}")
        super().__init__({"sigma": sigma}, trainable, bounds)
        self.nu = nu

    @staticmethod
    def _squared_distances(x: Array, y: Array | None) -> Any:
        # By differences: r itself matters here, and the square root would halve the digits of a matrix product's r².
        if y is None and isinstance(x, np.ndarray) and x[0].size <= _FEW:
            return _by_differences(x.reshape(len(x), -1))
        a = as_tensor(x).reshape(len(x), -1)
        b = a if y is None else as_tensor(y).reshape(len(y), -1)
        return in_kind(torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square_(), x)

    def _scaled(self, r2: Any) -> Any:
        return r2**0.5 * (math.sqrt(2 * self.nu) / self._scalar("sigma"))

    def _profile(self, r2: Any) -> Any:
        a = self._scaled(r2)
        value = _exp_(-a)
        if self.nu > 0.5:
            value *= 1 + a if self.nu == 1.5 else 1 + a + a * a / 3
        return value

    def _slope(self, r2: Any, gram: Any) -> Any:
        a = self._scaled(r2)
        factor = {
            0.5: lambda: (a > 0) / (a + (a == 0)),  # 1/a, but 0 at the cusp at r = 0, where nothing is to be moved
            1.5: lambda: 1.0,
            2.5: lambda: (1 + a) / 3,
        }[self.nu]()
        return _exp_(-a) * factor * (-self.nu / self._scalar("sigma") ** 2)

    def _gradients(self, inner: Callable[[Any], float], r2: Any, gram: Any) -> dict[str, float]:
        return {"sigma": inner(self._slope(r2, gram) * r2) * (-2 / self._scalar("sigma"))}


class Laplace(Kernel):
    """exp(−‖x − x'‖₁ / σ), the sum of absolute differences, as scikit-learn's `laplacian_kernel`; with one feature
    Matérn's ν = 1/2."""

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.LaplaceOption.default_bounds()

    def __init__(
        self,
        sigma: float = options.LaplaceOption.sigma,
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
