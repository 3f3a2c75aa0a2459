"""A kernel on points that a flow has moved: K(F(x), F(x'))."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from kfx.files import whole_file, write_arrays
from kfx.flows.layers import Layer
from kfx.kernels.base import Kernel
from kfx.kernels.covariance import Pull
from kfx.kernels.wrapped import Wrapped
from kfx.numerics.arrays import Array, as_tensor, digests, in_kind, in_numpy
from kfx.numerics.regularization import Regularization
from kfx.outcomes import ConfigError

_BLOCK = 4096


class FlowedKernel(Wrapped[Kernel]):
    """The kernel K(F(x), F(x')) for a flow F; its parameters are those of `kernel`, K.

    carried: digests of the points that the flow moved and their final positions, (n, …), where F is looked up. Equal
        points count as one, at the position of the first of them.
    layers: a function that yields the recorded layers in order, for all other points; None if none were recorded.
    together: a layer's step depends on all points that pass through at once (test-time steps); otherwise new points go
        through in blocks.
    """

    def __init__(
        self,
        kernel: Kernel,
        carried: tuple[np.ndarray, torch.Tensor],
        layers: Callable[[], Iterable[Layer]] | None = None,
        together: bool = False,
    ) -> None:
        super().__init__(kernel)
        self._layers, self._together = layers, together
        self._digests, self._positions = carried
        self._rows = {digest.tobytes(): row for row, digest in reversed(list(enumerate(self._digests)))}

    @property
    def own_regularization(self) -> Regularization | None:
        return self.kernel.own_regularization

    @property
    def layers(self) -> Iterator[Layer]:
        """The recorded layers; ConfigError if none were recorded."""
        if self._layers is None:
            raise ConfigError(
                "flow.record_layers=false: no layers were recorded, which move points that did not flow along; set it "
                "to true"
            )
        return iter(self._layers())

    def with_layers(self, layers: Callable[[], Iterable[Layer]]) -> Self:
        """The same kernel with its layers read from elsewhere."""
        other = copy.copy(self)
        other._layers = layers
        return other

    def transform(self, x: Array) -> Any:
        """F(x), in x's shape, (n, …), and dtype; NumPy or torch as x is.

        ValueError for points of another shape, ConfigError for a point that did not flow along if no layers were
        recorded.
        """
        return in_kind(self._mapped(as_tensor(x)), x)

    def _mapped(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim < 2 or math.prod(x.shape[1:]) != math.prod(self._positions.shape[1:]):
            expected = ", ".join(map(str, self._positions.shape[1:]))
            raise ValueError(f"expected points of shape (n, {expected}), got {tuple(x.shape)}")
        rows = np.array(
            [self._rows.get(digest.tobytes(), -1) for digest in digests(x.to(self._positions.dtype))], dtype=np.int64
        )
        known = torch.as_tensor(rows >= 0, device=x.device)
        moved = x.clone()
        if bool(known.any()):
            there = torch.as_tensor(rows[rows >= 0], device=self._positions.device)
            moved[known] = self._positions[there].to(moved).reshape(-1, *x.shape[1:])
        if not bool(known.all()):
            moved[~known] = self._through_layers(x[~known])
        return moved

    def _through_layers(self, x: torch.Tensor) -> torch.Tensor:
        blocks = [x] if self._together else list(x.split(_BLOCK))
        for layer in self.layers:
            blocks = [layer.move(block) for block in blocks]
        return torch.cat(blocks)

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        gram, pull = self.kernel._pullback(self._mapped(x))

        def pull_parameters(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Any], torch.Tensor | None]:
            if inputs:
                raise ValueError("a flowed kernel has no gradient to its inputs: they went through all layers")
            return pull(cotangent, False)

        return gram, pull_parameters

    def save(self, path: Path) -> None:
        """Write parameters and carried points; the layers stay in the file in which they were recorded."""
        values = {f"parameter.{name}": in_numpy(value) for name, value in self._values.items()}
        positions = self._positions.cpu().numpy()
        with whole_file(path, durable=True) as stream:
            own = {"digests": self._digests, "positions": positions, "together": np.array(self._together)}
            write_arrays(stream, {**own, **values})

    @classmethod
    def load(cls, path: Path, kernel: Kernel, layers: Callable[[], Iterable[Layer]] | None = None) -> Self:
        """Read a file of `save`, for a kernel of the same kind."""
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            values = {n[len("parameter.") :]: stored[n] for n in stored.files if n.startswith("parameter.")}
            carried = stored["digests"], torch.as_tensor(stored["positions"])
            together = bool(stored["together"])
        plain = {name: value if value.ndim else float(value) for name, value in values.items()}
        return cls(kernel.with_parameters(**plain), carried, layers, together)
