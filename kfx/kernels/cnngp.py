"""The Gaussian process of an infinitely wide convolutional network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
import torch

from kfx.kernels.base import Bounds, Kernel, Pull
from kfx.kernels.cnngp_torch import TorchEngine
from kfx.kernels.layers import Conv2d, Instruction, Sequential

ENGINES = ("auto", "fused", "torch")
_COMPILED = (torch.float32, torch.float64)


class CNNGP(Kernel):
    """The covariance of a convolutional network of infinitely many channels (Garriga-Alonso et al. 2019).

    K¹ = σ_b² + σ_w² · mean over patch and channels of x x',  K^{l+1} = σ_b² + σ_w² · mean over patch of V(K^l).

    architecture: `Sequential(Conv2d(…), ReLU(), …, Conv2d(…))`, ending in 1 × 1 maps.
    weight_variance, bias_variance: σ_w², σ_b² ≥ 0, one number for the network or one for each convolution, in the
        order of the architecture, a residual block's projection after its body.
    variance_scaling: `fan_in`, the mean over the patch, padding included (as cnn-gp and neural-tangents); `weight`,
        the sum over the patch (Khalid 2022, eq. 2.27 as printed).
    engine: `fused`, compiled loops over maps that stay in a CPU's cache; `torch`, which a GPU needs; `auto`, fused
        for points on a CPU.
    tile_megabytes: memory of the torch engine's maps that are alive at once; on a GPU the tile is halved where memory
        runs out. The fused engine's tiles are as large as its cache likes.

    Points are (n, channels, height, width), square or not. Computed in x's dtype, on x's device. Gram matrices and
    exact gradients are computed tile by tile, in the memory of a few tiles at any batch size and depth.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {"weight_variance": (1e-3, 1e3), "bias_variance": (1e-3, 1e3)}

    def __init__(
        self,
        architecture: Sequential,
        weight_variance: float | Iterable[float] = 1.0,
        bias_variance: float | Iterable[float] = 0.1,
        *,
        variance_scaling: str = "fan_in",
        engine: str = "auto",
        tile_megabytes: float = 32.0,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        if variance_scaling not in ("fan_in", "weight"):
            raise ValueError(f"variance_scaling must be fan_in or weight, got {variance_scaling!r}")
        if engine not in ENGINES:
            raise ValueError(f"engine must be {', '.join(ENGINES[:-1])} or {ENGINES[-1]}, got {engine!r}")
        super().__init__({"weight_variance": weight_variance, "bias_variance": bias_variance}, trainable, bounds)
        for name, value in self._values.items():
            if np.size(value) not in (1, architecture.convolutions):
                raise ValueError(
                    f"{name} takes one number or {architecture.convolutions}, one a convolution; got {np.size(value)}"
                )
        self.architecture, self.variance_scaling, self.tile_megabytes = architecture, variance_scaling, tile_megabytes
        self.engine = engine

    def backend_on(self, device: torch.device) -> str:
        if self.engine == "auto":
            return "fused" if device.type == "cpu" and find_spec("numba") else "torch"
        return self.engine

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        if self.backend_on(device) == "fused":
            from kfx.kernels.cnngp_fused import compile_for

            compile_for(dtype)

    def _is_fused(self, x: torch.Tensor) -> bool:
        return self.backend_on(x.device) == "fused" and (x.dtype in _COMPILED or self.engine == "fused")

    # ---- between parameters and what an engine takes: the factor and the shift of each instruction

    def _factors(self, program: tuple[Instruction, ...]) -> list[float]:
        """σ_w² of each instruction is multiplied by this; 0 where there is none."""
        convolutions = [i.layer if isinstance(i.layer, Conv2d) else None for i in program]
        mean = self.variance_scaling == "fan_in"
        return [0.0 if c is None else c.weight_multiplier / (c.area if mean else 1) for c in convolutions]

    def _engine(self, x: torch.Tensor) -> Any:
        if x.ndim != 4:
            raise ValueError(f"CNNGP takes images (n, channels, height, width), got points of {tuple(x.shape)}")
        program = self.architecture.program((x.shape[2], x.shape[3]))
        factors = self._factors(program)
        each = [iter(np.broadcast_to(v, self.architecture.convolutions)) for v in self._values.values()]
        weights, biases = ([float(next(own)) if factor else 0.0 for factor in factors] for own in each)
        weights = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
        if self._is_fused(x):
            if x.device.type != "cpu" or x.dtype not in _COMPILED:
                raise ValueError(
                    f"engine=fused takes float32 or float64 on a CPU, and the points are {x.dtype} on {x.device}; "
                    "use torch or auto"
                )
            from kfx.kernels.cnngp_fused import FusedEngine

            return FusedEngine(program, weights, biases)
        return TorchEngine(program, weights, biases, self.tile_megabytes)

    def _gradient(self, engine: Any, to_weights: list[Any], to_biases: list[Any]) -> dict[str, Any]:
        """From the engine's gradient, one entry an instruction, to the parameters': shared ones get the sum."""
        factors = np.array(self._factors(engine.program))
        each = (np.array([float(g) for g in to_weights]) * factors, np.array([float(g) for g in to_biases]))
        return {
            name: gradient[factors > 0] if np.size(value) > 1 else float(gradient.sum())
            for (name, value), gradient in zip(self._values.items(), each, strict=True)
        }

    # ---- the protocol

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return self._engine(x).gram(x, y)

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return self._engine(x).diagonal(x)

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        engine = self._engine(x)
        is_shared = all(np.size(value) == 1 for value in self._values.values())
        if not (is_shared and self._is_fused(x)):
            return engine.gram(x, None), _CNNGPPull(self, engine, x, None)
        factors = np.array(self._factors(engine.program))
        zeros = np.zeros_like(factors)
        gram, along = engine.gram_along(x, np.stack([factors, zeros]), np.stack([zeros, factors > 0]))
        return gram, _CNNGPPull(self, engine, x, along)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.architecture.convolutions} convolutions)"


class _CNNGPPull(Pull):
    """Keeps the points, and each tile is computed again, pulled back and dropped. Where the network shares its two
    parameters, the fused engine carries their tangents along with the value instead (`along`, two more matrices):
    2.0 to 2.8 times the value's time for both, against 3.0 to 3.9 in reverse; `scripts/bench_cnngp.py` compares."""

    def __init__(self, kernel: CNNGP, engine: Any, x: torch.Tensor, along: torch.Tensor | None) -> None:
        self.kernel, self.engine, self.x, self.along = kernel, engine, x, along

    def __call__(self, cotangent: torch.Tensor, inputs: bool) -> tuple[dict[str, Any], torch.Tensor | None]:
        if self.along is not None and not inputs:
            sums = [float((matrix * cotangent).sum(dtype=torch.float64)) for matrix in self.along]
            return dict(zip(self.kernel._values, sums, strict=True)), None
        gradient, to_x = self.engine.pull(self.x, cotangent.to(self.x.dtype), inputs)
        return self.kernel._gradient(self.engine, *gradient), to_x
