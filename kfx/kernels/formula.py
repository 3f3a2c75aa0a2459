"""A kernel given by its formula alone; autograd computes the pullback."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

import torch

from kfx.kernels.base import Kernel
from kfx.kernels.covariance import Pull
from kfx.kernels.parameters import Bounds, Value

_ROWS = 256  # rows of a tile; memory holds the autograd graph of one tile
_CHECKED = 100
"""Points at which a formula is checked to be a kernel."""


class Formula(Kernel):
    """K(x, y) = `formula(x, y, **parameters)`, for a user's own formula in torch.

    formula: maps points x, (n, …), and y, (m, …), and parameters, scalars by name, to K(x, y), (n, m), differentiably.
        Where a derivative does not exist, as that of a distance at 0, autograd must give a finite number.
    values: the parameters. bounds: the range of each, `(1e-4, 1e4)` by default. may_be_zero: parameters that may be 0.
    signed: parameters that may be any number.

    The pullback computes each tile of rows twice, for the value and for the gradient. A kernel with its own `_pullback`
    takes half the time and less memory.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {}

    def __init__(
        self,
        formula: Callable[..., torch.Tensor],
        values: Mapping[str, float],
        *,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
        may_be_zero: Iterable[str] = (),
        signed: Iterable[str] = (),
        name: str | None = None,
    ) -> None:
        self.may_be_zero, self.signed = frozenset(may_be_zero), frozenset(signed)
        usual = dict.fromkeys(values, (1e-4, 1e4))
        super().__init__(values, trainable, {**usual, **(bounds or {})})
        self.formula, self.title = formula, str(name or getattr(formula, "__name__", "formula"))

    def _tile(self, x: torch.Tensor, y: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        tile = self.formula(x, y, **parameters)
        if not isinstance(tile, torch.Tensor) or tile.shape != (len(x), len(y)):
            shape = tuple(tile.shape) if isinstance(tile, torch.Tensor) else type(tile).__name__
            expected = f"a tensor {(len(x), len(y))} for {len(x)} and {len(y)} points"
            raise ValueError(f"the formula of {self.title} gave {shape}; expected {expected}")
        return tile

    def require_good_on(self, x: torch.Tensor) -> None:
        """Raise ValueError unless the formula gives the matrix of a kernel at points x, (n, …): finite, symmetric, and
        without negative eigenvalues."""
        gram = self._gram(x[:_CHECKED], None).to(torch.float64)
        if not bool(torch.isfinite(gram).all()):
            raise ValueError(f"the formula of {self.title} gave values that are not finite")
        noise = math.sqrt(torch.finfo(x.dtype).eps) * len(gram) * float(gram.abs().max())
        apart = float((gram - gram.mT).abs().max())
        if apart > noise:
            raise ValueError(
                f"the formula of {self.title} is no kernel: K(x, y) and K(y, x) differ, by up to {apart:.3g}"
            )
        if (least := float(torch.linalg.eigvalsh(gram)[0])) < -noise:
            of = f"the matrix of {len(gram)} points has the eigenvalue {least:.3g}"
            raise ValueError(f"the formula of {self.title} is no kernel: {of}, and no kernel's is negative")

    @torch.no_grad()
    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        others, parameters = x if y is None else y, self._as_tensors(x)
        tiles = [self._tile(rows, others, parameters) for rows in x.split(_ROWS)]
        return torch.cat(tiles) if tiles else x.new_zeros(0, len(others))

    @torch.no_grad()
    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        parameters = self._as_tensors(x)
        blocks = [self._tile(block, block, parameters).diagonal() for block in x.split(16)]
        return torch.cat(blocks) if blocks else x.new_zeros(0)

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            with torch.enable_grad():
                parameters = self._as_tensors(x, gradient=True)
                points = x.detach().clone().requires_grad_(inputs)
                wanted = [*parameters.values(), *([points] if inputs else [])]
                total = [torch.zeros_like(each) for each in wanted]
                for start in range(0, len(x), _ROWS):
                    rows = points[start : start + _ROWS]
                    value = (self._tile(rows, points, parameters) * cotangent[start : start + _ROWS].to(x)).sum()
                    for sum_, part in zip(total, torch.autograd.grad(value, wanted, allow_unused=True), strict=True):
                        if part is not None:
                            sum_ += part
            by_name = {name: float(slope) for name, slope in zip(parameters, total, strict=False)}
            return by_name, total[-1] if inputs else None

        return self._gram(x, None), pull

    def __repr__(self) -> str:
        return super().__repr__().replace(type(self).__name__, self.title, 1)
