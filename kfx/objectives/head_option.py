"""The base of options of objectives that train a kernel's head on classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kfx.config.rules import CLASSES, needs, refuses, rows
from kfx.objectives.options import ObjectiveOption
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    import torch

    from kfx.objectives.base import Objective


@dataclass
class HeadOption(ObjectiveOption):
    """Base of objectives that train a kernel's head on classes and are not functions of a Gram matrix.

    A subclass writes `own_loss`, `start` and `recorded`.
    """

    has_head = True
    rules = rows(
        needs(CLASSES, "use rho"),
        refuses(
            lambda _, c: c.sampler.follows_rho or c.sampler.samples > 1,
            "has one sample a batch, of the same size; use sampler=fixed or epochs, and sampler.samples=1",
        ),
        refuses(
            lambda _, c: c.kernel.starts > 1 or c.kernel.trainable is not None,
            "trains all parameters; leave kernel.starts and kernel.trainable out",
        ),
    )

    def build(self) -> Objective:
        raise TypeError(f"objective={self.name} is not a function of a Gram matrix: see own_loss")

    def require_classes(self, y: torch.Tensor) -> None:
        """Raise ConfigError where targets, (n, outputs), have one output."""
        if y.shape[1] == 1:
            raise ConfigError(f"objective={self.name}: takes one output for each class; these targets are ±1, use rho")
