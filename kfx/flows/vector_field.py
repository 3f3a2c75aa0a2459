"""The velocity that lowers ρ, on a batch and, by interpolation, at all points."""

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

_MERGED = 16  # points this close, in round-off errors of the largest coordinate, count as one


@dataclass(frozen=True)
class Interpolation:
    """Extend the batch's velocities g to a field, v(x) = K(x, X_f) (K(X_f, X_f) + λI)⁻¹ g (Owhadi & Yoo 2019, eq. 6.6).

    kernel: K; None for the flow's own. regularization: λ. solver, rcond: as in `kfx.numerics.regression`.
    """

    kernel: Kernel | None
    regularization: Regularization
    solver: str = "cholesky"
    rcond: float | None = None

    def field(self, own: Kernel, own_gram: Factored, x_f: torch.Tensor, g: torch.Tensor) -> Field:
        """The field that takes the values g, (N_f, …), at the points x_f, (N_f, …), up to the effect of λ.

        own: the flow's kernel. own_gram: its Gram matrix of x_f, which is used again if K is that kernel.
        """

        def solved() -> torch.Tensor:
            factored = own_gram if self.kernel is None else Factored(self.kernel.gram(x_f))
            values = g.reshape(len(g), -1).to(torch.float64)
            chosen = self.regularization.of(factored.gram)
            return coefficients(factored, values, chosen, self.solver, self.rcond).to(x_f.dtype)

        return Field(self.kernel or own, x_f, solved)


@dataclass(frozen=True)
class Field:
    """v(x) = K(x, centres) coefficients; the coefficients are computed when first needed (NumericalError if that
    fails)."""

    kernel: Kernel
    centres: torch.Tensor
    solved: Callable[[], torch.Tensor]

    @cached_property
    def coefficients(self) -> torch.Tensor:
        return self.solved()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Velocities at x, in x's shape, (n, …)."""
        return (self.kernel.gram(x, self.centres) @ self.coefficients.to(x)).reshape(x.shape)


class Velocity:
    """The velocity −∂objective/∂X_f of a batch (Owhadi & Yoo 2019, eq. 6.5; for RBF their Cor. 6.3), and its field.

    complete: all points follow the interpolated field; otherwise batch points follow −∂objective/∂X_f itself, in which
        the sample and the rest are two fields (Khalid 2022, §4.3).
    """

    def __init__(self, loss: Loss, interpolation: Interpolation, complete: bool) -> None:
        self.loss, self.interpolation, self.complete = loss, interpolation, complete

    def evaluate(self, kernel: Kernel, x_f: torch.Tensor, y_f: torch.Tensor, batch: Batch) -> Evaluation:
        """The objective of a batch at x_f, (N_f, …), with its gradient to these points. y_f: (N_f, outputs)."""
        return self.loss.at(kernel, x_f, y_f, batch, points=True)

    def of(self, evaluation: Evaluation, kernel: Kernel, x_f: torch.Tensor) -> tuple[torch.Tensor, Field]:
        """g = −∂objective/∂X_f, (N_f, …), from an evaluation at x_f, (N_f, …), and its field.

        NumericalError if the objective failed, all points of the batch have merged, or the gradient vanishes.
        """
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
        """The velocity of the batch's own points, (N_f, …). x_f, g: (N_f, …)."""
        return field(x_f) if self.complete else g
