"""The Gaussian process of an infinitely wide dense network, in JAX."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import torch

from kfx.kernels import options
from kfx.kernels.base import Kernel, Pull
from kfx.kernels.nngp.native import ACTIVATIONS
from kfx.kernels.parameters import Bounds

jax.config.update("jax_enable_x64", True)  # the Gram follows the dtype of x; JAX alone would cut it to float32

_HOMES = {"neural_tangents": "kfx.kernels.nngp.by_neural_tangents", "native": "kfx.kernels.nngp.native"}
BACKENDS = tuple(_HOMES)


@cache
def default_backend() -> str:
    """`neural_tangents` where it imports (0.6.5 does with jax < 0.6), else `native`."""
    try:
        _backend("neural_tangents")
    except (ImportError, AttributeError):  # a later JAX lacks names that it imports
        return "native"
    return "neural_tangents"


def _backend(name: str) -> ModuleType:
    return importlib.import_module(_HOMES[name])


class NNGP(Kernel):
    """The covariance of a dense network of infinite width (Lee et al. 2018; Khalid 2022, eq. 2.19–2.20).

    K⁰ = σ_b² + σ_w² x·x'/d,  K^{l+1} = σ_b² + σ_w² F(K^l),  with `depth` activations F: `relu` or `erf`.

    depth: ≥ 0; 0 is the linear kernel.
    backend: `neural_tangents`, `native`, or None for the first where it imports; `.backend` says which it is.
    weight_variance, bias_variance: σ_w², σ_b² ≥ 0, one number for the network or one for each of depth + 1 layers.
    Images count as vectors of their pixels. Computed in x's dtype and returned on x's device.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.NNGP.default_bounds()

    def __init__(
        self,
        depth: int = options.NNGP.depth,
        activation: str = options.NNGP.activation,
        weight_variance: float | Iterable[float] = options.NNGP.weight_variance,
        bias_variance: float | Iterable[float] = options.NNGP.bias_variance,
        *,
        backend: str | None = None,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        if backend not in (None, *BACKENDS):
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
        if depth < 0:
            raise ValueError(f"depth must be >= 0, got {depth}")
        super().__init__({"weight_variance": weight_variance, "bias_variance": bias_variance}, trainable, bounds)
        for name, value in self._values.items():
            if np.size(value) not in (1, depth + 1):
                raise ValueError(f"{name} takes one number or {depth + 1}, one a layer; got {np.size(value)}")
        self.depth, self.activation = depth, activation
        self.backend = backend or default_backend()
        _backend(self.backend)  # fails here where it does not import

    @property
    def _jax(self) -> ModuleType:
        return _backend(self.backend)

    def backend_on(self, device: torch.device) -> str:
        return self.backend

    def _arguments(self, *arrays: torch.Tensor | None) -> list[Any]:
        dtype = next(a for a in arrays if a is not None).dtype
        kind = str(dtype).removeprefix("torch.")
        parameters = tuple(jnp.asarray(np.broadcast_to(v, self.depth + 1), kind) for v in self._values.values())
        device = _jax_device(next(a for a in arrays if a is not None).device)
        flattened = [None if a is None else jax.device_put(a.reshape(len(a), -1).cpu().numpy(), device) for a in arrays]
        return [jax.device_put(parameters, device), *flattened]

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return _to_torch(self._jax.gram(*self._arguments(x, y), activation=self.activation), x)

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return _to_torch(self._jax.variance(*self._arguments(x), activation=self.activation), x)

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[dict[str, Any], torch.Tensor | None]:
            parameters, points, given = self._arguments(x, cotangent.to(x.dtype))
            pulled = self._jax.pull(parameters, points, given, activation=self.activation, inputs=inputs)
            to_parameters, to_points = pulled if inputs else (pulled[0], None)
            by_name = {
                name: np.asarray(slope) if isinstance(value, np.ndarray) and value.size > 1 else float(slope.sum())
                for (name, value), slope in zip(self._values.items(), to_parameters, strict=True)
            }
            return by_name, None if to_points is None else _to_torch(to_points, x).reshape(x.shape)

        return self._gram(x, None), pull


@cache
def _jax_device(device: torch.device) -> Any:
    """JAX's name for a torch device; RuntimeError where JAX does not see it."""
    return jax.devices("cpu")[0] if device.type == "cpu" else jax.devices("gpu")[device.index or 0]


def _to_torch(array: jax.Array, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(like)
