"""The velocity that lowers ρ, on a batch and, by interpolation, everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from kfx.kernels.base import Kernel
from kfx.numerics.arrays import extent, numpy_if_small
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.regression import coefficients
from kfx.numerics.regularization import Regularization
from kfx.optimizers.loss import Evaluation, Loss
from kfx.outcomes import Event, NumericalError
from kfx.sampling.samplers import Batch

_MERGED = 16  # round-off errors of the largest coordinate between points that count as one


@dataclass(frozen=True)
class Interpolation:
    """How the batch's velocities g become a field, v(x) = K(x, X_f) (K(X_f, X_f) + λI)⁻¹ g (Owhadi & Yoo 2019, 6.6).

    kernel: K; None for the flow's own. regularization: λ, its own. solver, rcond: as in `kfx.numerics.regression`.
    """

    kernel: Kernel | None
    regularization: Regularization
    solver: str = "cholesky"
    rcond: float | None = None

    def field(self, own: Kernel, own_gram: Factored, x_f: torch.Tensor, g: torch.Tensor) -> Field:
        """The field that takes the values g, (N_f, …), at x_f; with λ, nearly. own: the flow's kernel, and its Gram
        matrix of x_f, which serves again where K and λ are the flow's."""

        def solved() -> torch.Tensor:
            factored = own_gram if self.kernel is None else Factored(self.kernel.gram(x_f))
            values = g.reshape(len(g), -1).to(torch.float64)
            chosen = self.regularization.of(factored.gram)
            return coefficients(factored, values, chosen, self.solver, self.rcond).to(x_f.dtype)

        return Field(self.kernel or own, x_f, solved)


@dataclass(frozen=True)
class Field:
    """v(x) = K(x, centres) coefficients, solved for when first needed: NumericalError where they cannot be had."""

    kernel: Kernel
    centres: torch.Tensor
    solved: Callable[[], torch.Tensor]

    @cached_property
    def coefficients(self) -> torch.Tensor:
        return self.solved()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Velocities at x, in x's shape."""
        return (self.kernel.gram(x, self.centres) @ self.coefficients.to(x)).reshape(x.shape)


class Velocity:
    """−∂objective/∂X_f of a batch (Owhadi & Yoo 2019, eq. 6.5; the RBF case is their Cor. 6.3), and its field.

    complete: every point follows the interpolated field; otherwise batch points follow −∂objective/∂X_f itself, of
    which the sample's part and the rest are two fields (Khalid 2022, §4.3).
    """

    def __init__(self, loss: Loss, interpolation: Interpolation, complete: bool) -> None:
        self.loss, self.interpolation, self.complete = loss, interpolation, complete

    def evaluate(self, kernel: Kernel, x_f: torch.Tensor, y_f: torch.Tensor, batch: Batch) -> Evaluation:
        """The objective of a batch at x_f, with the gradients that a field needs."""
        return self.loss.at(kernel, x_f, y_f, batch, points=True)

    def of(self, evaluation: Evaluation, kernel: Kernel, x_f: torch.Tensor) -> tuple[torch.Tensor, Field]:
        """g = −∂objective/∂X_f in x_f's shape, from an evaluation there, and its field. NumericalError where g cannot
        be had."""
        evaluation.require()
        assert evaluation.to_points is not None
        assert evaluation.factored is not None
        g = -evaluation.to_points
        size, spread = extent(x_f)
        if spread <= _MERGED * torch.finfo(x_f.dtype).eps * size:
            raise NumericalError(Event.COLLAPSED, "all points of the batch have merged")
        if not bool(numpy_if_small(g).any()):
            raise NumericalError(Event.FIELD_VANISHED, "the objective has no gradient to any point of the batch")
        return g, self.interpolation.field(kernel, evaluation.factored, x_f, g)

    def of_batch(self, field: Field, x_f: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        """The velocity that the batch's own points follow."""
        return field(x_f) if self.complete else g
