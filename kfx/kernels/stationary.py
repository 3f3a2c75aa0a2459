"""Kernels that depend on the distance r = ‖x − x'‖ alone. Images are treated as vectors of their pixels.

Each formula is written once, for NumPy arrays and torch tensors. Distances, exponentials and gradients with respect to
the points are computed by `stationary_arrays` for small matrices and by `stationary_tensors` for all others;
`Stationary._gram` and `Stationary._pullback` choose.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Protocol, Unpack, overload

import numpy as np
import torch

from kfx.kernels import options, stationary_arrays, stationary_tensors
from kfx.kernels.base import Kernel
from kfx.kernels.covariance import OfOuterProducts, Pull, SmallPullback
from kfx.kernels.parameters import Bounds, Training
from kfx.numerics.arrays import A, Array, as_rows, as_tensor, is_small
from kfx.numerics.outer_products import OuterProducts

Inner = Callable[[A], float]
"""The function M ↦ Σ_ij G_ij M_ij of a matrix M, (n, n), for a cotangent G, (n, n)."""
PullRows = Callable[[A | OuterProducts, bool], tuple[dict[str, float], A | None]]
"""Maps a cotangent G, (n, n), to the gradients of Σ_ij G_ij K_ij by parameter name, and with respect to the points,
(n, features), where requested."""

AT_A_TIME = 1 << 22  # entries of a Gram matrix that are computed from their distances


class Arithmetic(Protocol[A]):
    """Functions that the formulas need, for one kind of array: `stationary_arrays` or `stationary_tensors`."""

    def squared_distances(self, x: A, y: A | None, unit: float) -> A:
        """Return ‖x_i − y_j‖², (n, m), by a matrix product where that is exact enough for the pair.

        x: (n, features). y: (m, features), or None for x. unit: squared distance over which the kernel changes.
        """

    def squared_distances_by_differences(self, x: A, y: A | None) -> A:
        """Return ‖x_i − y_j‖², (n, m), by differences of coordinates, so that r has as many correct digits as they."""

    def exp(self, x: A) -> A:
        """Return exp(x), (n, m), computed in place. x: (n, m)."""

    def log(self, x: A) -> A:
        """Return log x, (n, m). x: (n, m)."""

    def in_float64(self, x: A) -> A:
        """Return x, (n, m), in float64, without a copy where it already is."""

    def fill_diagonal(self, matrix: A, value: float) -> None:
        """Write the value on the diagonal of a matrix (n, n)."""

    def inner(self, a: A, b: A) -> float:
        """Return Σ_ij a_ij b_ij of two matrices (n, n)."""

    def to_points(self, cotangent: A | OuterProducts, slope: A, points: A) -> A:
        """Return the gradient with respect to the points, Σ_j 4 G_ij S_ij (x_i − x_j), (n, features).

        cotangent: G of K, (n, n). slope: S = ∂K/∂(r²), (n, n), which may be overwritten. points: x, (n, features).
        The factor is 4 because ∂(r²_ij)/∂x_i = 2 (x_i − x_j) and each pair is in both triangles.
        """


@overload
def _arithmetic(of: np.ndarray) -> Arithmetic[np.ndarray]: ...
@overload
def _arithmetic(of: torch.Tensor) -> Arithmetic[torch.Tensor]: ...
def _arithmetic(of: Array) -> Arithmetic[np.ndarray] | Arithmetic[torch.Tensor]:
    return stationary_arrays if isinstance(of, np.ndarray) else stationary_tensors


def _compile_for(dtype: torch.dtype, device: torch.device) -> None:
    if device.type == "cpu" and dtype in (torch.float32, torch.float64):
        stationary_arrays.compile_for(dtype)


class Stationary(Kernel, OfOuterProducts):
    """K(x, x') = κ(r²). A subclass gives κ and its derivatives; distances are computed once for each call."""

    fills_diagonal = False

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        _compile_for(dtype, device)

    @abc.abstractmethod
    def _profile(self, on: Arithmetic[A], r2: A) -> A:
        """Return κ(r²), (n, m). r2: (n, m)."""

    @abc.abstractmethod
    def _slope(self, on: Arithmetic[A], r2: A, gram: A) -> A:
        """Return ∂κ/∂(r²), (n, n). r2: (n, n). gram: κ(r²), (n, n)."""

    @abc.abstractmethod
    def _gradients(self, on: Arithmetic[A], inner: Inner[A], r2: A, gram: A) -> dict[str, float]:
        """Return `inner` of ∂κ/∂θ for each parameter θ, by name. r2: (n, n). gram: κ(r²), (n, n)."""

    def _squared_distances(self, on: Arithmetic[A], x: A, y: A | None) -> A:
        return on.squared_distances(x, y, self._unit())

    def _unit(self) -> float:
        """Return a squared distance over which log κ changes by about 1: what r² may be wrong by is a share of it."""
        assert self.length is not None
        return float(self._scalar(self.length)) ** 2

    def _variance(self) -> float:
        """Return κ(0)."""
        return 1.0

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        if is_small(x) and (y is None or is_small(y)):
            return torch.from_numpy(self._of_rows(as_rows(x.numpy()), None if y is None else as_rows(y.numpy()))[1])
        gram = self._squared_distances(stationary_tensors, as_rows(x), None if y is None else as_rows(y))
        for block in gram.view(-1).split(AT_A_TIME):  # temporaries as large as K would take three times its memory
            block.copy_(self._profile(stationary_tensors, block))
        if y is None:
            stationary_tensors.fill_diagonal(gram, self._variance())
        return gram

    def _of_rows(self, x: A, y: A | None) -> tuple[A, A]:
        """Return r² and K, both (n, m), of points (n, features) and (m, features)."""
        on = _arithmetic(x)
        r2 = self._squared_distances(on, x, y)
        gram = self._profile(on, r2)
        if y is None:
            on.fill_diagonal(gram, self._variance())
        return r2, gram

    def against(self, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function x ↦ K(x, y), (n, m), for many calls with a few points x, (n, …). y: (m, …)."""
        if type(self)._squared_distances is not Stationary._squared_distances:
            return lambda x: self.gram(x, y)
        distances = stationary_arrays.squared_distances_to(as_rows(y), self._unit())
        return lambda x: self._profile(stationary_arrays, distances(as_rows(x)))

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        variance = self._variance()
        known = variance if variance <= torch.finfo(x.dtype).max else math.inf  # which torch does not find out
        return x.new_full((1,), known).expand(len(x))

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        rows = as_rows(x)
        by_arrays = is_small(rows)  # then NumPy computes in the same memory
        gram, pull_rows = self.pullback_of_rows(rows.numpy() if by_arrays else rows)  # type: ignore[type-var]

        def pull(cotangent: torch.Tensor | OuterProducts, inputs: bool) -> tuple[dict[str, float], torch.Tensor | None]:
            given = cotangent.numpy() if by_arrays and isinstance(cotangent, torch.Tensor) else cotangent
            by_name, moved = pull_rows(given, inputs)
            return by_name, None if moved is None else as_tensor(moved).reshape(x.shape)

        return as_tensor(gram), pull

    def small_pullback(self, x: torch.Tensor) -> SmallPullback | None:
        if type(self)._pullback is not Stationary._pullback or not is_small(x) or x.ndim < 2:
            return None
        return self.pullback_of_rows(as_rows(x.numpy()))

    def pullback_of_rows(self, rows: A) -> tuple[A, PullRows[A]]:
        """Return K, (n, n), and its pullback, in NumPy or torch as the points are.

        rows: points, (n, features). The pullback takes a cotangent of the points' kind, (n, n), or `OuterProducts`; it
        may be called several times.
        """
        on = _arithmetic(rows)
        r2, gram = self._of_rows(rows, None)

        def pull(cotangent: A | OuterProducts, inputs: bool) -> tuple[dict[str, float], A | None]:
            given = cotangent.of_kind(rows) if isinstance(cotangent, OuterProducts) else cotangent
            inner: Inner[A] = given.inner if isinstance(given, OuterProducts) else partial(on.inner, given)
            wide = on.in_float64(gram)  # a slope may overflow float32 where the value does not
            by_name = self._gradients(on, inner, r2, wide)
            return by_name, on.to_points(given, self._slope(on, r2, wide), rows) if inputs else None

        return gram, pull


class RBF(Stationary):
    """exp(−r² / (2 σ²)), where σ > 0 is `sigma`, a length in the units of x."""

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.RBFOption.default_bounds()
    length: ClassVar[str | None] = "sigma"

    def __init__(self, sigma: float = 1.0, **training: Unpack[Training]) -> None:
        super().__init__({"sigma": sigma}, **training)

    def _profile(self, on: Arithmetic[A], r2: A) -> A:
        sigma = self._scalar("sigma")
        return on.exp(r2 * (-0.5 / sigma**2))

    def _slope(self, on: Arithmetic[A], r2: A, gram: A) -> A:
        return gram * (-0.5 / self._scalar("sigma") ** 2)

    def _gradients(self, on: Arithmetic[A], inner: Inner[A], r2: A, gram: A) -> dict[str, float]:
        return {"sigma": inner(gram * r2) / self._scalar("sigma") ** 3}


class RationalQuadratic(Stationary):
    """(β² + γ r²)^(−α), α, β, γ > 0 (Darcy 2020, eq. 1.9, with the norm squared).

    γ is not trained unless named in `trainable`. With γ = 1 the kernel's length is β.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.RationalQuadraticOption.default_bounds()
    length: ClassVar[str | None] = "beta"
    default_trainable: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    def __init__(
        self,
        alpha: float = options.RationalQuadraticOption.alpha,
        beta: float = 1.0,
        gamma: float = options.RationalQuadraticOption.gamma,
        **training: Unpack[Training],
    ) -> None:
        super().__init__({"alpha": alpha, "beta": beta, "gamma": gamma}, **training)

    def _unit(self) -> float:
        return float(super()._unit() / (self._scalar("gamma") * max(self._scalar("alpha"), 1.0)))

    def _base(self, r2: A) -> A:
        return r2 * self._scalar("gamma") + self._scalar("beta") * self._scalar("beta")

    def _profile(self, on: Arithmetic[A], r2: A) -> A:
        return self._base(r2) ** -self._scalar("alpha")

    def _variance(self) -> float:
        return float(self._scalar("beta") ** (-2 * self._scalar("alpha")))

    def _slope(self, on: Arithmetic[A], r2: A, gram: A) -> A:
        return gram / self._base(r2) * (-self._scalar("alpha") * self._scalar("gamma"))

    def _gradients(self, on: Arithmetic[A], inner: Inner[A], r2: A, gram: A) -> dict[str, float]:
        alpha, beta, base = self._scalar("alpha"), self._scalar("beta"), self._base(r2)
        to_base = gram / base
        return {
            "alpha": -inner(gram * on.log(base)),
            "beta": -2 * alpha * beta * inner(to_base),
            "gamma": -alpha * inner(to_base * r2),
        }


class Matern(Stationary):
    """Matérn kernel with smoothness ν and length σ, `sigma`, as in scikit-learn, with a = √(2ν) r / σ:

    ν = 1/2: exp(−a).    ν = 3/2: (1 + a) exp(−a).    ν = 5/2: (1 + a + a²/3) exp(−a).
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.MaternOption.default_bounds()
    length: ClassVar[str | None] = "sigma"

    def __init__(self, sigma: float = 1.0, nu: float = options.MaternOption.nu, **training: Unpack[Training]) -> None:
        options.MaternOption.require(nu=nu)
        super().__init__({"sigma": sigma}, **training)
        self.nu = nu

    def _squared_distances(self, on: Arithmetic[A], x: A, y: A | None) -> A:
        # The kernel depends on r; the square root of r² by a matrix product would have half the digits.
        return on.squared_distances_by_differences(x, y)

    def _scaled(self, r2: A) -> A:
        return r2**0.5 * (math.sqrt(2 * self.nu) / self._scalar("sigma"))

    def _profile(self, on: Arithmetic[A], r2: A) -> A:
        a = self._scaled(r2)
        value = on.exp(-a)
        if self.nu > 0.5:
            value *= 1 + a if self.nu == 1.5 else 1 + a + a * a / 3
        return value

    def _slope(self, on: Arithmetic[A], r2: A, gram: A) -> A:
        a = self._scaled(r2)
        slope = on.exp(-a)
        if self.nu == 0.5:
            slope *= (a > 0) / (a + (a == 0))  # 1/a, but 0 at the cusp at r = 0
        elif self.nu == 2.5:
            slope *= (1 + a) / 3
        return slope * (-self.nu / self._scalar("sigma") ** 2)

    def _gradients(self, on: Arithmetic[A], inner: Inner[A], r2: A, gram: A) -> dict[str, float]:
        return {"sigma": inner(self._slope(on, r2, gram) * r2) * (-2 / self._scalar("sigma"))}


class Laplace(Kernel):
    """exp(−‖x − x'‖₁ / σ), where σ > 0 is `sigma`, as scikit-learn's `laplacian_kernel` with γ = 1/σ.

    With one feature it equals Matérn with ν = 1/2.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.LaplaceOption.default_bounds()
    length: ClassVar[str | None] = "sigma"
    distance_norm = 1.0

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        _compile_for(dtype, device)

    def __init__(self, sigma: float = 1.0, **training: Unpack[Training]) -> None:
        super().__init__({"sigma": sigma}, **training)

    def _distances(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        few_digits = x.itemsize < 4  # torch has no such distances of them
        a, b = (as_rows(each.float() if few_digits else each) for each in (x, x if y is None else y))
        return torch.cdist(a, b, p=1.0).to(x.dtype)

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return stationary_tensors.exp(self._distances(x, y).div_(-self._scalar("sigma")))

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(len(x))

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        distances, sigma = self._distances(x, None), self._scalar("sigma")
        gram = stationary_tensors.exp(distances / -sigma)

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[dict[str, float], torch.Tensor | None]:
            weights = cotangent * gram / -sigma
            by_name = {"sigma": float((weights * distances).sum()) / -sigma}
            if not inputs:
                return by_name, None
            signs = stationary_arrays.sums_of_signs if x.is_cpu else stationary_tensors.sums_of_signs
            return by_name, (2 * signs(weights, as_rows(x).to(weights))).reshape(x.shape)

        return gram, pull
