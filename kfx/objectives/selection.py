"""How the λ of kernels is decided: in one unit, given, trained, or chosen by training points that are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kfx.config.choices import CHOSEN
from kfx.numerics.regularization import Regularization


@dataclass(frozen=True)
class Selection:
    """How λ is decided.

    how: `fixed`; `trained` with the kernel; or chosen by `validation` in folds, `leave_one_out`, or `backtest`, by
    forecasts within the series.
    values: λ where it is fixed, of which each is evaluated; where training starts; or the candidates.
    folds, points: the number of folds of `validation`, and of training points that are used; None for all.
    again: whether it is decided again for the trained kernel, which else keeps the λ of the initial one.
    """

    how: str
    values: Sequence[Regularization]
    folds: int = 5
    points: int | None = None
    again: bool = True

    @property
    def is_chosen(self) -> bool:
        """Whether λ is chosen among candidates for each kernel."""
        return self.how in CHOSEN
