"""Sums, products and multiples of kernels."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from kfx.kernels.base import Bounds, Kernel, Pull


class Combination(Kernel):
    """A kernel made of `parts`. Their parameters are its own, under `0.sigma`, `1.alpha`, …, with their bounds; what
    is trainable in them is trainable here."""

    default_bounds: ClassVar[Mapping[str, Bounds]] = {}

    def __init__(
        self,
        parts: Sequence[Kernel],
        own: Mapping[str, float] | None = None,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        if not parts or not all(isinstance(part, Kernel) for part in parts):
            raise ValueError(f"{type(self).__name__} takes kernels, got {list(parts)!r}")
        self._made_of = tuple(parts)
        values: dict[str, Any] = dict(own or {})
        inherited: dict[str, Bounds] = {}
        usual = list(values)
        for i, part in enumerate(parts):
            values |= {f"{i}.{name}": value for name, value in part.parameters.items()}
            inherited |= {f"{i}.{name}": bound for name, bound in part.limits.items()}
            usual += [f"{i}.{name}" for name in part.trainable]
        super().__init__(values, usual if trainable is None else trainable, {**inherited, **(bounds or {})})

    @property
    def parts(self) -> list[Kernel]:
        """The kernels that it is made of, with its present parameters."""
        return [
            part.with_parameters(**{name: self._values[f"{i}.{name}"] for name in part.parameters})
            for i, part in enumerate(self._made_of)
        ]

    def backend_on(self, device: torch.device) -> str:
        return "+".join(sorted({part.backend_on(device) for part in self._made_of}))

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        for part in self._made_of:
            part.prepare(dtype, device)

    @abc.abstractmethod
    def _combined(self, each: list[torch.Tensor]) -> torch.Tensor:
        """From the parts' values to this kernel's, entry by entry."""

    @abc.abstractmethod
    def _cotangents(
        self, cotangent: torch.Tensor, grams: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], dict[str, float]]:
        """The parts' cotangents, and the gradient to parameters of its own."""

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return self._combined([part._gram(x, y) for part in self.parts])

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return self._combined([part._diagonal(x) for part in self.parts])

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        grams, pulls = map(list, zip(*(part._pullback(x) for part in self.parts), strict=True))
        for gram, part in zip(grams, self.parts, strict=True):
            gram.diagonal().copy_(part._diagonal(x))

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[dict[str, Any], torch.Tensor | None]:
            cotangents, own = self._cotangents(cotangent, grams)
            by_name: dict[str, Any] = dict(own)
            to_inputs: torch.Tensor | None = None
            for i, (pull_part, part) in enumerate(zip(pulls, cotangents, strict=True)):
                named, moved = pull_part(part, inputs)
                by_name |= {f"{i}.{name}": value for name, value in named.items()}
                if moved is not None:
                    to_inputs = moved if to_inputs is None else to_inputs + moved
            return by_name, to_inputs

        return self._combined(grams), pull


class Sum(Combination):
    """Σ_i K_i."""

    def _combined(self, each: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(each).sum(dim=0) if len(each) > 2 else each[0] + each[-1] if len(each) == 2 else each[0]

    def _cotangents(
        self, cotangent: torch.Tensor, grams: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], dict[str, float]]:
        return [cotangent] * len(grams), {}


class Product(Combination):
    """Π_i K_i, entry by entry."""

    def _combined(self, each: list[torch.Tensor]) -> torch.Tensor:
        return math.prod(each[1:], start=each[0])

    def _cotangents(
        self, cotangent: torch.Tensor, grams: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], dict[str, float]]:
        others = [math.prod(grams[:i] + grams[i + 1 :], start=cotangent) for i in range(len(grams))]
        return others, {}


class Scaled(Combination):
    """c² K, c > 0: `coefficient`, squared so that it cannot turn a kernel into what is none (Darcy 2020, §4.3)."""

    def __init__(
        self,
        kernel: Kernel,
        coefficient: float = 1.0,
        *,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        given = {"coefficient": (1e-4, 1e4), **(bounds or {})}
        super().__init__([kernel], {"coefficient": coefficient}, trainable, given)

    def _combined(self, each: list[torch.Tensor]) -> torch.Tensor:
        return each[0] * self._scalar("coefficient") ** 2

    def _cotangents(
        self, cotangent: torch.Tensor, grams: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], dict[str, float]]:
        c = self._scalar("coefficient")
        return [cotangent * c**2], {"coefficient": 2 * c * float((cotangent * grams[0]).sum())}
