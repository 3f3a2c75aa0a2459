"""Kernels of infinitely wide dense networks: the NNGP, of a network at initialization, and the tangent kernel."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import ClassVar, Unpack

import numpy as np
import torch

from kfx.kernels import network_options
from kfx.kernels.base import Kernel
from kfx.kernels.covariance import Pull
from kfx.kernels.engine import Engine, engine_for, is_compiled
from kfx.kernels.parameters import Bounds, Training, Value

_OF_JAX = {"neural_tangents": "kfx.kernels.nngp.by_neural_tangents", "native": "kfx.kernels.nngp.native"}


class NNGP(Kernel):
    """The covariance of a dense network of infinite width (Lee et al. 2018; Khalid 2022, eq. 2.19–2.20).

    K⁰ = σ_b² + σ_w² x·x'/d,  K^{l+1} = σ_b² + σ_w² F(K^l),  with `depth` activations F: `relu` or `erf`.

    depth: ≥ 0; 0 is the linear kernel.
    backend: `fused`, compiled loops on a CPU; `torch`, for any device; `native` and `neural_tangents`, by JAX; `auto`,
        fused for points on a CPU, else torch.
    weight_variance, bias_variance: σ_w², σ_b² ≥ 0, one number for the network or one for each of the depth + 1 layers.
    Images are treated as vectors of their pixels. Results have x's dtype and device. Raises ValueError for another
    number of variances than layers, and for a word that is not listed here; ConfigError where a backend cannot be
    imported.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = network_options.NNGPOption.default_bounds()

    @property
    def _fixed(self) -> int:
        """The number of first layers that are not trained: for the NNGP all but the last."""
        return self.depth

    def __init__(
        self,
        depth: int = network_options.NNGPOption.depth,
        activation: str = network_options.NNGPOption.activation,
        weight_variance: float | Sequence[float] | np.ndarray = network_options.NNGPOption.weight_variance,
        bias_variance: float | Sequence[float] | np.ndarray = network_options.NNGPOption.bias_variance,
        *,
        backend: str = network_options.NNGPOption.backend,
        **training: Unpack[Training],
    ) -> None:
        network_options.NNGPOption.require(depth=depth, activation=activation, backend=backend)
        super().__init__({"weight_variance": weight_variance, "bias_variance": bias_variance}, **training)
        for name, value in self._values.items():
            if np.size(value) not in (1, depth + 1):
                raise ValueError(f"{name} takes one number or {depth + 1}, one per layer; got {np.size(value)}")
        self.depth, self.activation, self.backend = depth, activation, backend
        if backend in _OF_JAX:
            functions(backend)  # raises ConfigError now and not in a fit

    def backend_at(self, x: torch.Tensor) -> str:
        return engine_for(self.backend, x, "backend", "native" if isinstance(self, NTK) else "torch or auto")

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        if is_compiled(self.backend, dtype, device):
            from kfx.kernels.nngp.fused import compile_for

            compile_for(dtype)

    def _engine(self, x: torch.Tensor, to_pull: bool = False) -> Engine:
        """Return the engine for points like x; ValueError where the chosen backend does not take them."""
        weights, biases = (np.broadcast_to(v, self.depth + 1).tolist() for v in self._values.values())
        name = self.backend_at(x)
        if name in _OF_JAX:
            from kfx.kernels.nngp.by_jax import JaxNetwork

            return JaxNetwork(functions(name), self.activation, self._fixed, weights, biases)
        if name == "fused":
            from kfx.kernels.nngp.fused import FusedNetwork

            return FusedNetwork(self.activation, self._fixed, weights, biases, to_pull)
        if isinstance(self, NTK):
            raise ValueError(f"NTK: takes float32 or float64 on a CPU, got {x.dtype} on {x.device}; or backend=native")
        from kfx.kernels.nngp.by_torch import TorchNetwork

        return TorchNetwork(self.activation, weights, biases)

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return self._engine(x).gram(x, y)

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return self._engine(x).diagonal(x)

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        network = self._engine(x, to_pull=True)

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            gradient, to_x = network.pull(x, cotangent.to(x.dtype), inputs)
            by_name: dict[str, Value] = {}
            for (name, value), slopes in zip(self._values.items(), gradient, strict=True):
                each = np.array([float(slope) for slope in slopes])
                by_name[name] = each if np.size(value) > 1 else float(each.sum())
            return by_name, to_x

        return network.gram(x, None), pull


class NTK(NNGP):
    """The tangent kernel of a dense network of infinite width, trained by gradient descent (Jacot et al. 2018).

    Θ^f = K^f,  Θ^{l+1} = K^{l+1} + σ_w² F'(K^l) Θ^l  with K, F and the parameters of `NNGP`, and F' the covariance of
    the activation's derivative. At equal points the derivative of F' for a ReLU is infinite; it is taken as 0.
    fixed_layers: f, 0 ≤ f ≤ depth, the number of first layers that keep their initial weights (Arora et al. 2020,
        section 3.2); with f = depth Θ is the NNGP.
    backend: `auto`, `fused`, `native` or `neural_tangents`; a GPU needs one of the last two, which are by JAX.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = network_options.NTKOption.default_bounds()

    def __init__(
        self,
        depth: int = network_options.NTKOption.depth,
        activation: str = network_options.NTKOption.activation,
        weight_variance: float | Sequence[float] | np.ndarray = network_options.NTKOption.weight_variance,
        bias_variance: float | Sequence[float] | np.ndarray = network_options.NTKOption.bias_variance,
        *,
        fixed_layers: int = network_options.NTKOption.fixed_layers,
        backend: str = network_options.NTKOption.backend,
        **training: Unpack[Training],
    ) -> None:
        super().__init__(depth, activation, weight_variance, bias_variance, backend=backend, **training)
        if self.backend == "torch":
            raise ValueError("NTK: backend must be one of auto, fused, native, neural_tangents, got 'torch'")
        if not 0 <= fixed_layers <= depth:
            raise ValueError(f"fixed_layers must be from 0 to depth={depth}, got {fixed_layers}")
        self.fixed_layers = fixed_layers

    @property
    def _fixed(self) -> int:
        return self.fixed_layers


def functions(name: str) -> ModuleType:
    """Return the module of JAX functions of a backend; ConfigError where it cannot be imported."""
    return importlib.import_module(_OF_JAX[name])
