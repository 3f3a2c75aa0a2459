"""The Green's function of an elliptic equation with unknown conductivity (Owhadi & Yoo 2019, §5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Unpack

import numpy as np
import torch

from kfx.kernels import options
from kfx.kernels.base import Kernel
from kfx.kernels.covariance import Pull
from kfx.kernels.parameters import Bounds, Training, Value
from kfx.numerics import elliptic
from kfx.numerics.arrays import as_rows, in_numpy
from kfx.outcomes import Event, NumericalError


class GreensFunction(Kernel):
    """The Green's function of −(b u')' on (0, 1), u = 0 at both ends, at the nodes of piecewise-linear elements:

        Θ = π₀ A₀(b)⁻¹ π₀ᵀ,    b(x) = a₀(x) exp(Σ_{i ≤ modes} cosine_i cos 2πix + sine_i sin 2πix)    (eq. 5.2)

    with b at the middle of each element. Points are positions of nodes i/intervals, (n, 1), 0 < i < intervals. The
    paper's discretization has 2⁸ intervals and so 255 inner nodes (its text says "2⁸ interior points").

    modes: terms of the Fourier series; `cosine` and `sine` are (modes,), of any sign, and start at 0.
    conductivity: a₀ by name, see `elliptic.CONDUCTIVITIES`. There is no gradient with respect to the points, since
    they are nodes.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.GreensFunctionOption.default_bounds()
    signed = frozenset({"cosine", "sine"})

    def __init__(
        self,
        modes: int = options.GreensFunctionOption.modes,
        intervals: int = options.GreensFunctionOption.intervals,
        conductivity: str = options.GreensFunctionOption.conductivity,
        **training: Unpack[Training],
    ) -> None:
        options.GreensFunctionOption.require(modes=modes, intervals=intervals, conductivity=conductivity)
        super().__init__({"cosine": np.zeros(modes), "sine": np.zeros(modes)}, **training)
        self.modes, self.intervals = modes, intervals
        middles = elliptic.midpoints(intervals)
        phases = 2 * np.pi * np.multiply.outer(middles, np.arange(1, modes + 1))
        self._waves = {"cosine": np.cos(phases), "sine": np.sin(phases)}
        self._start = elliptic.CONDUCTIVITIES[conductivity](middles)

    @property
    def conductivity(self) -> np.ndarray:
        """b at the middle of each element, (intervals,)."""
        with np.errstate(over="ignore"):
            return self._start * np.exp(sum(waves @ self._values[name] for name, waves in self._waves.items()))

    def fresh(self, rng: np.random.Generator) -> dict[str, Value]:
        """Return random coefficients, (modes,) each, for which log b has variance 1 everywhere."""
        return {name: rng.normal(0.0, self.modes**-0.5, self.modes) for name in self._waves}

    def _columns(self, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the indices of the points' nodes, (n,), A₀⁻¹π₀ᵀ, (intervals − 1, n), and b, (intervals,)."""
        rows, b = self._rows(x), self.conductivity
        unit = np.zeros((self.intervals - 1, len(rows)))
        unit[rows, np.arange(len(rows))] = 1.0
        if not (np.isfinite(b).all() and (b > 0).all()):
            raise NumericalError(Event.DIVERGED, "its conductivity leaves the range of float64")
        try:
            return rows, elliptic.solve(b, unit), b
        except np.linalg.LinAlgError as error:
            raise NumericalError(Event.NOT_POSITIVE_DEFINITE, f"its stiffness matrix: {error}") from error

    def _rows(self, x: torch.Tensor) -> np.ndarray:
        scaled = as_rows(in_numpy(x)).astype(np.float64) * self.intervals
        rows = np.rint(scaled[:, :1]).astype(np.int64)
        tolerance = max(1e-3, 4 * torch.finfo(x.dtype).eps * self.intervals)
        if scaled.shape[1] != 1 or np.abs(scaled - rows).max(initial=0.0) > tolerance or not self._are_inner(rows):
            n = self.intervals
            raise ValueError(f"GreensFunction: points are nodes i/{n}, 0 < i < {n}, (n, 1); got {tuple(x.shape)}")
        return rows[:, 0] - 1

    def _are_inner(self, rows: np.ndarray) -> bool:
        return bool(((rows > 0) & (rows < self.intervals)).all())

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        rows = self._rows(x)
        _, columns, _ = self._columns(x if y is None else y)
        gram = columns[rows]
        return torch.as_tensor((gram + gram.T) / 2 if y is None else gram).to(x)

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns, _ = self._columns(x)
        return torch.as_tensor(columns[rows, np.arange(len(rows))]).to(x)

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        rows, columns, b = self._columns(x)
        ends = np.zeros((1, len(rows)))
        slopes = np.diff(np.concatenate([ends, columns, ends]), axis=0) * self.intervals  # of each column, on elements

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            if inputs:
                raise ValueError("a Green's function has no gradient to its inputs: they are nodes")
            # Σ G ∘ ∂Θ = −tr(∂A₀ S G Sᵀ) with S = A₀⁻¹π₀ᵀ, and ∂A₀/∂b_e involves the derivative of S on element e.
            g = in_numpy(cotangent).astype(np.float64)
            to_log = -b / self.intervals * np.einsum("ej,ej->e", slopes @ g, slopes)
            return {name: waves.T @ to_log for name, waves in self._waves.items()}, None

        gram = columns[rows]
        return torch.as_tensor((gram + gram.T) / 2).to(x), pull
