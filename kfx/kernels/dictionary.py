"""A weighted sum of kernels out of a dictionary of 21 (Yang et al. 2023, "Learning dynamical systems from data … part
V: sparse kernel flows for 132 chaotic dynamical systems")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.kernels.combination_options import DICTIONARY, INDEFINITE
from kfx.kernels.covariance import Pull
from kfx.kernels.parameters import Bounds, Given, Value
from kfx.kernels.stationary_tensors import squared_distances_by_differences
from kfx.numerics.arrays import as_rows

Entry = Callable[..., torch.Tensor]
"""A formula of r² and x·x', (n, m) both, and of its parameters, scalars."""


@dataclass(frozen=True)
class Member:
    """A kernel of the dictionary: its formula, and its parameters with usual values."""

    formula: Entry
    parameters: Mapping[str, float]


def _r(r2: torch.Tensor) -> torch.Tensor:
    """The distance, whose gradient at 0 is taken as 0."""
    return torch.where(r2 > 0, r2, 1.0).sqrt() * (r2 > 0)


def _circular(r2: torch.Tensor, s: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    t = torch.where(r2 < scale**2, _r(r2) / scale, 0.0)
    inside = torch.arccos(-t) - t * (1 - t**2).sqrt()  # their scripts' arccos(−t); the circular kernel has arccos(t)
    return torch.where(r2 < scale**2, inside, 0.0)


_S = {"scale": 1.0}
_SN = {"scale": 1.0, "exponent": 2.0}
_PERIODIC = {"frequency": 1.0, "scale": 1.0}
_DECAYING = {**_PERIODIC, "length": 1.0}
MEMBERS: dict[str, Member] = {
    "gaussian": Member(lambda r2, s, length: torch.exp(-r2 / (2 * length**2)), {"length": 1.0}),
    "exponential": Member(lambda r2, s, length: torch.exp(-_r(r2) / (2 * length)), {"length": 1.0}),
    "inverse_multiquadric": Member(lambda r2, s, scale: (r2 / scale + 1) ** -0.5, _S),
    "inverse_multiquadric_of_r": Member(lambda r2, s, scale: (_r(r2) / scale + 1) ** -0.5, _S),
    "inverse_power": Member(lambda r2, s, scale, exponent: (r2 / scale + 1) ** -exponent, _SN),
    "inverse_power_of_r": Member(lambda r2, s, scale, exponent: (_r(r2) / scale + 1) ** -exponent, _SN),
    "cauchy": Member(lambda r2, s, scale: 1 / (1 + r2 / scale), _S),
    "cauchy_of_r": Member(lambda r2, s, scale: 1 / (1 + _r(r2) / scale), _S),
    "rational": Member(lambda r2, s, scale: 1 - r2 / (r2 + scale), _S),
    "linear": Member(lambda r2, s, constant: s + constant, {"constant": 1.0}),
    "polynomial": Member(
        lambda r2, s, slope, constant, exponent: (slope * s + constant) ** exponent,
        {"slope": 1.0, "constant": 1.0, "exponent": 2.0},
    ),
    "multiquadric": Member(lambda r2, s, scale: (r2 / scale + 1).sqrt(), _S),
    "periodic": Member(lambda r2, s, frequency, scale: torch.exp(-(torch.sin(r2 * frequency) ** 2) / scale), _PERIODIC),
    "periodic_of_r": Member(
        lambda r2, s, frequency, scale: torch.exp(-(torch.sin(_r(r2) * frequency) ** 2) / scale), _PERIODIC
    ),
    "decaying_periodic": Member(
        lambda r2, s, frequency, scale, length: torch.exp(-(torch.sin(r2 * frequency) ** 2) / scale - r2 / length),
        _DECAYING,
    ),
    "decaying_periodic_of_r": Member(
        lambda r2, s, frequency, scale, length: torch.exp(
            -(torch.sin(_r(r2) * frequency) ** 2) / scale - _r(r2) / length
        ),
        _DECAYING,
    ),
    "parabola": Member(lambda r2, s, scale: torch.relu(1 - r2 / scale), _S),
    "triangle": Member(lambda r2, s, scale: torch.relu(1 - _r(r2) / scale), _S),
    "circular": Member(_circular, _S),
    "logarithm": Member(lambda r2, s, exponent: torch.log(_r(r2) ** exponent + 1), {"exponent": 2.0}),
    "sigmoid": Member(lambda r2, s, slope, constant: torch.tanh(slope * s + constant), {"slope": 1.0, "constant": 1.0}),
}
"""The kernels by name, in the order of `DICTIONARY` and `INDEFINITE`. Where a formula of r² has a twin in r, the twin's
name ends in `of_r`; `rational` equals `cauchy`, as in the paper."""
_WHOLE = "exponent"


class Dictionary(Kernel):
    """Σ_i w_i k_i / Σ_i w_i for kernels k_i of `MEMBERS`, with weights w_i ≥ 0.

    members: names of the k_i. allow_indefinite: accept those of `INDEFINITE`, which are not positive definite in every
        dimension; Θ + λI may then have no Cholesky factor.
    weights: w, (members,); None for equal weights.
    parameters: values by name, as `gaussian_length`. Exponents are whole and not trained. Raises ValueError for unknown
    or repeated members, weights that are all 0, and exponents that are no whole numbers ≥ 1.

    The division keeps a sum of weights, which a penalty lowers, from changing the effective λ.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {}
    weight_names = frozenset({"weight"})

    def __init__(
        self,
        members: Sequence[str] = DICTIONARY,
        *,
        allow_indefinite: bool = False,
        weights: Given | None = None,
        parameters: Mapping[str, float] | None = None,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        if (
            not members
            or (unknown := [name for name in members if name not in MEMBERS])
            or len(set(members)) < len(members)
        ):
            raise ValueError(
                f"kernel.members: expected different names out of {', '.join(MEMBERS)}, got {list(members)!r}"
            )
        refused = [name for name in members if name in INDEFINITE]
        if refused and not allow_indefinite:
            raise ValueError(
                f"kernel.members: {', '.join(refused)}: not positive definite in every dimension; set "
                "kernel.allow_indefinite=true, or leave them out"
            )
        self.members, self.labels = tuple(members), {"weight": tuple(members)}
        self.may_be_zero = self.weight_names
        given = np.ones(len(members)) if weights is None else np.asarray(weights, dtype=np.float64)
        if given.shape != (len(members),) or not given.sum() > 0:
            raise ValueError(f"kernel.weights: expected {len(members)} numbers >= 0, not all 0, got {given.tolist()}")
        values: dict[str, Given] = {"weight": given / given.sum()}
        values |= {f"{name}_{key}": v for name in members for key, v in MEMBERS[name].parameters.items()}
        usual = [name for name in values if not name.endswith(_WHOLE)]
        trainable = None if trainable is None else tuple(trainable)
        if wrong := [name for name in trainable or () if name.endswith(_WHOLE)]:
            raise ValueError(f"kernel.trainable={wrong}: exponents are whole and not trained; leave them out")
        limits = {name: (0.0, 1.0) if name == "weight" else (1e-3, 1e3) for name in values}
        named = values.keys() - {"weight"}
        if unknown := sorted((parameters or {}).keys() - named):
            raise ValueError(f"kernel.parameters.{unknown[0]}: unknown; it takes {', '.join(sorted(named))}")
        values |= parameters or {}
        for name, value in values.items():
            if name.endswith(_WHOLE) and not (float(value) >= 1 and float(value).is_integer()):  # type: ignore[arg-type]
                raise ValueError(f"{name}={value!r}: expected a whole number >= 1")
        super().__init__(values, usual if trainable is None else trainable, {**limits, **(bounds or {})})

    def proximal(self, values: Mapping[str, Value], amount: float) -> dict[str, Value]:
        """Subtract an amount from each weight, down to 0, and scale the weights to sum to one.

        The largest weight stays above 0.
        """
        if "weight" not in values:
            return dict(values)
        weight = np.asarray(values["weight"])
        weight = weight if weight.max() > 0 else np.ones_like(weight)
        left = np.maximum(weight - min(amount, weight.max() / 2), 0.0)
        return {**values, "weight": left / left.sum()}

    def _each(self, r2: torch.Tensor, s: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Σ_i w_i k_i of r² and x·x', (n, m) both; a member whose weight is 0 is not computed."""
        weight = parameters["weight"] / parameters["weight"].sum().clamp(min=1e-300)
        total = torch.zeros_like(r2)
        for i, name in enumerate(self.members):
            if weight.requires_grad or weight[i] > 0:
                own = {key: parameters[f"{name}_{key}"] for key in MEMBERS[name].parameters}
                total = total + weight[i] * MEMBERS[name].formula(r2, s, **own)
        return total

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return self._each(*_between(x, x if y is None else y), self._as_tensors(x))

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        s = as_rows(x).square().sum(dim=1)
        return self._each(torch.zeros_like(s), s, self._as_tensors(x))

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        r2, s = _between(x, x)
        with torch.enable_grad():
            parameters = self._as_tensors(x, gradient=True)
            gram = self._each(r2.requires_grad_(), s.requires_grad_(), parameters)

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            wanted = [*parameters.values(), *([r2, s] if inputs else [])]
            found = torch.autograd.grad(gram, wanted, cotangent.to(gram), retain_graph=True, allow_unused=True)
            slopes = [torch.zeros_like(each) if g is None else g for each, g in zip(wanted, found, strict=True)]
            by_name: dict[str, Value] = {
                name: slope.cpu().numpy().astype(np.float64) if slope.ndim else float(slope)
                for name, slope in zip(parameters, slopes, strict=False)
            }
            if not inputs:
                return by_name, None
            points, (to_r2, to_s) = as_rows(x), slopes[-2:]
            to_r2.fill_diagonal_(0.0)
            # r²_ij = |x_i|² + |x_j|² − 2 x_i·x_j, and both slopes are symmetric
            moved = 4 * (to_r2.sum(dim=1)[:, None] * points - to_r2 @ points) + 2 * to_s @ points
            return by_name, moved.reshape(x.shape)

        return gram.detach(), pull


def _between(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """r² and x·x', (n, m) both."""
    a, b = as_rows(x), as_rows(y)
    return squared_distances_by_differences(a, None if x is y else b), a @ b.mT
