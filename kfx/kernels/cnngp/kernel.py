"""The covariance kernel of an infinitely wide convolutional network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, Unpack

import numpy as np
import torch

from kfx.kernels import network_options
from kfx.kernels.base import Kernel
from kfx.kernels.cnngp.layers import Conv2d, Instruction, Sequential
from kfx.kernels.covariance import Pull
from kfx.kernels.engine import Engine, ForwardEngine, Gradient, engine_for, is_compiled
from kfx.kernels.parameters import Bounds, Training, Value


class CNNGP(Kernel):
    """The covariance of a convolutional network of infinitely many channels (Garriga-Alonso et al. 2019).

    K¹ = σ_b² + σ_w² · mean over patch and channels of x x',  K^{l+1} = σ_b² + σ_w² · mean over patch of V(K^l),
    where V is the covariance of the activation.

    architecture: `Sequential(Conv2d(…), ReLU(), …, Conv2d(…))`, ending in 1 × 1 maps.
    weight_variance, bias_variance: σ_w², σ_b² ≥ 0, one number for the network or one for each convolution, in the
        order of the architecture, a residual block's projection after its body.
    variance_scaling: `fan_in`, the mean over the patch, padding included (as cnn-gp and neural-tangents); `weight`,
        the sum over the patch (Khalid 2022, eq. 2.27 as printed).
    engine: `fused`, compiled loops over maps that stay in a CPU's cache; `torch`, for any device; `triton`, float32 on
        a CUDA device, with a pair's map in registers through all layers; `auto`, fused for points on a CPU, triton
        where it is installed and takes them, else torch.
    tile_megabytes: memory of the maps that an engine holds at once on a CPU; on a GPU 32 times as much, which is
        halved where memory runs out. The fused engine ignores it.

    With pooling in the architecture, the kernel needs the whole spatial covariance of a pair of images, (height ·
    width)² numbers a layer; `spatial_loops` and `spatial_torch_engine` compute it. There is no triton engine for it.

    Points are images, (n, channels, height, width). Results are computed in x's dtype, on x's device. Gram matrices and
    exact gradients are computed tile by tile, so that memory holds a few tiles at any batch size and depth. Raises
    ValueError for another number of variances than convolutions, and for a word that is not listed here.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = network_options.CNNGPOption.default_bounds()

    def __init__(
        self,
        architecture: Sequential,
        weight_variance: float | Sequence[float] | np.ndarray = network_options.CNNGPOption.weight_variance,
        bias_variance: float | Sequence[float] | np.ndarray = network_options.CNNGPOption.bias_variance,
        *,
        variance_scaling: str = network_options.CNNGPOption.variance_scaling,
        engine: str = network_options.CNNGPOption.engine,
        tile_megabytes: float = network_options.CNNGPOption.tile_megabytes,
        **training: Unpack[Training],
    ) -> None:
        network_options.CNNGPOption.require(
            variance_scaling=variance_scaling, engine=engine, tile_megabytes=tile_megabytes
        )
        super().__init__({"weight_variance": weight_variance, "bias_variance": bias_variance}, **training)
        for name, value in self._values.items():
            if np.size(value) not in (1, architecture.convolutions):
                raise ValueError(
                    f"{name} takes one number or {architecture.convolutions}, one per convolution; got {np.size(value)}"
                )
        self.architecture, self.variance_scaling, self.tile_megabytes = architecture, variance_scaling, tile_megabytes
        self.engine = engine

    def backend_at(self, x: torch.Tensor) -> str:
        name = engine_for(self.engine, x, "engine", "torch or auto")
        if self.engine == "auto" and x.is_cuda and not self._is_spatial and find_spec("triton"):
            from kfx.kernels.cnngp.triton_engine import refusal

            return "torch" if refusal(x, self._program(x)) else "triton"
        return name

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        if is_compiled(self.engine, dtype, device):
            if self._is_spatial:
                from kfx.kernels.cnngp.spatial_engine import compile_for
            else:
                from kfx.kernels.cnngp.fused_engine import compile_for

            compile_for(dtype)

    # ---- from parameters to an engine's arguments: the factor and the shift of each instruction

    def _factors(self, program: tuple[Instruction, ...]) -> list[float]:
        """Return the factor on σ_w² of each instruction; 0 for one without weights."""
        convolutions = [i.layer if isinstance(i.layer, Conv2d) else None for i in program]
        mean = self.variance_scaling == "fan_in"
        return [0.0 if c is None else c.weight_multiplier / (c.area if mean else 1) for c in convolutions]

    @property
    def _is_spatial(self) -> bool:
        """Whether an engine for whole spatial covariances computes the kernel."""
        return self.architecture.pools

    def _trained(self, program: tuple[Instruction, ...]) -> list[float] | None:
        """Return for a tangent kernel whether each instruction's weights are trained, 0 or 1; else None."""
        return None

    def _program(self, x: torch.Tensor) -> tuple[Instruction, ...]:
        if x.ndim != 4:
            raise ValueError(f"CNNGP takes images (n, channels, height, width), got points of {tuple(x.shape)}")
        return self.architecture.program((x.shape[2], x.shape[3]))

    def _engine(self, x: torch.Tensor) -> Engine:
        """Return the engine for images like x; ValueError where the chosen engine does not take them."""
        program = self._program(x)
        factors = self._factors(program)
        each = [iter(np.broadcast_to(v, self.architecture.convolutions)) for v in self._values.values()]
        weights, biases = ([float(next(own)) if factor else 0.0 for factor in factors] for own in each)
        weights = [weight * factor for weight, factor in zip(weights, factors, strict=True)]
        name = self.backend_at(x)
        if self._is_spatial:
            if name == "triton":
                raise ValueError(f"engine=triton: does not take {type(self).__name__} with pooling; use torch or auto")
            if name == "fused":
                from kfx.kernels.cnngp.spatial_engine import ForwardSpatialEngine, SpatialEngine

                trained = self._trained(program)
                if trained is None:
                    return ForwardSpatialEngine(program, weights, biases)
                return SpatialEngine(program, weights, biases, trained)
            from kfx.kernels.cnngp.spatial_torch_engine import SpatialTorchEngine

            return SpatialTorchEngine(program, weights, biases, self.tile_megabytes, self._trained(program))
        match name:
            case "fused":
                from kfx.kernels.cnngp.fused_engine import FusedEngine

                return FusedEngine(program, weights, biases)
            case "triton":
                from kfx.kernels.cnngp.triton_engine import TritonEngine, refusal

                if refused := refusal(x, program):
                    raise ValueError(refused)
                return TritonEngine(program, weights, biases, self.tile_megabytes)
        from kfx.kernels.cnngp.torch_engine import TorchEngine

        return TorchEngine(program, weights, biases, self.tile_megabytes)

    def _gradient(self, program: tuple[Instruction, ...], gradient: Gradient) -> dict[str, Value]:
        """Return the parameters' gradients from an engine's, which has an entry for each instruction.

        A shared parameter gets the sum.
        """
        factors = np.array(self._factors(program))
        to_weights, to_biases = (np.array([float(g) for g in each]) for each in gradient)
        return {
            name: slope[factors > 0] if np.size(value) > 1 else float(slope.sum())
            for (name, value), slope in zip(self._values.items(), (to_weights * factors, to_biases), strict=True)
        }

    # ---- the protocol

    def multiplications(self, x: torch.Tensor, y: torch.Tensor) -> float:
        return math.inf

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return self._engine(x).gram(x, y)

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return self._engine(x).diagonal(x)

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        """Return K(x, x) and its pullback, which computes each tile again, pulls it back and drops it.

        Where all layers share the two parameters, an engine with forward mode computes their derivatives, two more
        matrices, along with the value. Value and gradient then take 2.0 to 2.8 times the value's time, instead of 3.0
        to 3.9 in reverse mode; `scripts/bench_cnngp.py` and `scripts/bench_pooled.py` compare.
        """
        engine, program = self._engine(x), self._program(x)
        along: torch.Tensor | None = None
        if isinstance(engine, ForwardEngine) and all(np.size(value) == 1 for value in self._values.values()):
            factors = np.array(self._factors(program))
            zeros = np.zeros_like(factors)
            gram, along = engine.gram_along(x, np.stack([factors, zeros]), np.stack([zeros, factors > 0]))
        else:
            gram = engine.gram(x, None)

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            if along is not None and not inputs:
                sums = [float((matrix * cotangent).sum(dtype=torch.float64)) for matrix in along]
                return dict(zip(self._values, sums, strict=True)), None
            gradient, to_x = engine.pull(x, cotangent.to(x.dtype), inputs)
            return self._gradient(program, gradient), to_x

        return gram, pull

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.architecture.convolutions} convolutions)"


class CNTK(CNNGP):
    """The neural tangent kernel of a convolutional network of infinitely many channels (Arora et al. 2019).

    Θ¹ = K¹,  Θ^{l+1} = K^{l+1} + σ_w² · mean over patch of Θ^l E[φ'φ'], with K as in `CNNGP`, in the parametrization
    where weights have unit variance and layers the factors σ_w, σ_b (neural-tangents' `ntk`). Pooling averages Θ as K.

    fixed_layers: `none`, or layers whose weights are not trained and add no K of their own to Θ: `first`, `last`, or
        `first_and_last`, as CNTK's published kernels.

    The whole spatial covariance is computed, also for an architecture without pooling. Parameters, engines (but triton)
    and points are those of `CNNGP`.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = network_options.CNTKOption.default_bounds()

    def __init__(
        self,
        architecture: Sequential,
        weight_variance: float | Sequence[float] | np.ndarray = network_options.CNTKOption.weight_variance,
        bias_variance: float | Sequence[float] | np.ndarray = network_options.CNTKOption.bias_variance,
        *,
        fixed_layers: str = network_options.CNTKOption.fixed_layers,
        **settings: Any,
    ) -> None:
        network_options.CNTKOption.require(fixed_layers=fixed_layers)
        super().__init__(architecture, weight_variance, bias_variance, **settings)
        self.fixed_layers = fixed_layers

    @property
    def _is_spatial(self) -> bool:
        return True

    def _trained(self, program: tuple[Instruction, ...]) -> list[float] | None:
        trained = [float(isinstance(instruction.layer, Conv2d)) for instruction in program]
        if self.fixed_layers in ("first", "first_and_last"):
            trained[trained.index(1.0)] = 0.0
        if self.fixed_layers in ("last", "first_and_last"):
            trained[max(k for k, instruction in enumerate(program) if isinstance(instruction.layer, Conv2d))] = 0.0
        return trained
