"""Options of the group `kernel` whose kernels are those of networks, of infinite or finite width."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Unpack

from kfx.config.fields import flag, number, parameter, word
from kfx.config.option import option
from kfx.kernels.kernel_option import ARDOption, Image, KernelOption, NetworkOption
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    import torch

    from kfx.kernels.base import Kernel
    from kfx.kernels.parameters import Training

_POOLED = ("convnet_gap", "cntk_gap", "myrtle5", "myrtle7", "myrtle10")
_ARCHITECTURES = ("simple", "convnet", "convnet_cifar", "resnet", "resnet32", *_POOLED)
"""Functions of `kfx.kernels.cnngp.architectures`."""


@dataclass
class _NetworkOption(KernelOption):
    weight_variance: float = parameter(1.0, 1e-3, 1e3, "variance sigma_w^2 of the weights", ">= 0")
    bias_variance: float = parameter(0.1, 1e-3, 1e3, "variance sigma_b^2 of the biases", ">= 0")


@option(
    "kernel",
    "nngp",
    "NNGP: covariance of a dense network of infinite width, with one weight variance and one bias variance",
)
class NNGPOption(ARDOption, _NetworkOption):
    builds = "kfx.kernels.nngp.kernel:NNGP"

    depth: int = number(3, "whole >= 0 and <= 10000", "number of hidden layers, each with an activation")
    activation: str = word(
        "relu | erf", "activation function; its covariance map is F in K <- sigma_b^2 + sigma_w^2 F(K)"
    )
    backend: str = word(
        "auto | fused | torch | native | neural_tangents",
        "implementation; auto: fused on a CPU, torch on a GPU; fused: compiled loops; native, neural_tangents: in JAX",
    )

    @property
    def uses_jax(self) -> bool:  # type: ignore[override]
        return self.backend in ("native", "neural_tangents")

    def check_device(self, name: str, device: torch.device) -> None:
        if self.backend == "fused" and device.type != "cpu":
            raise ConfigError(f"kernel.backend=fused: needs a CPU, and device={name}; use auto")


@option("kernel", "ntk", "Neural tangent kernel of a dense network of infinite width, with the settings of nngp")
class NTKOption(NNGPOption):
    builds = "kfx.kernels.nngp.kernel:NTK"
    implied = {**NNGPOption.implied, "fixed_layers": 0}  # noqa: RUF012

    fixed_layers: int = number(
        0, "whole >= 0", "number of first layers whose weights are not trained, at most depth; depth: the NNGP"
    )

    def check_device(self, name: str, device: torch.device) -> None:
        super().check_device(name, device)
        if self.backend == "auto" and device.type != "cpu":
            raise ConfigError(f"kernel.backend=auto: kernel=ntk needs JAX where device={name}; set native")


@option("kernel", "network_features", "Gaussian kernel on the features of a convolutional network of finite width")
class NetworkFeaturesOption(NetworkOption):
    images_only = True

    architecture: str = word(
        "small | mnist | mnist_300 | fashion | fashion_1024",
        "layers of the network; small: for 8 x 8 pixels; the others: for MNIST and Fashion-MNIST",
    )
    weights: str = word(
        "default | truncated",
        "initial weights; default: as torch draws them; "
        "truncated: normal with standard deviation 0.1, cut at 0.2, and biases 0.1",
    )

    def module(self, image: Image) -> torch.nn.Module:
        from kfx.kernels.networks import NETWORKS, draw_truncated

        assert image is not None
        height, width, channels = (*image, 1)[:3]
        network = NETWORKS[self.architecture]((channels, height, width))
        if self.weights == "truncated":
            draw_truncated(network)
        return network


@option(
    "kernel",
    "cnngp",
    "Covariance of a convolutional network with infinitely many channels; exact gradients, tile by tile",
)
class CNNGPOption(_NetworkOption):
    builds = "kfx.kernels.cnngp.kernel:CNNGP"
    images_only = True
    implied = {"depth": None, "flips": False}  # noqa: RUF012

    architecture: str = word(_ARCHITECTURES, "layers of the network; their sizes follow the image")
    variances: str = word(
        "shared | per_layer",
        "shared: one weight_variance and one bias_variance; per_layer: a pair for each convolution",
    )
    variance_scaling: str = word(
        "fan_in | weight",
        "covariance of a convolution; fan_in: mean over the patch; weight: sum over it (Khalid 2022, eq. 2.27)",
    )
    depth: int | None = number(
        None,
        "whole >= 2 and <= 1000",
        "number of layers of cntk_gap, the last dense one among them",
        null="14; the other architectures have their own",
    )
    flips: bool = flag(False, "average over images and their mirror images; takes four times as long")
    hidden_weight_multiplier: float = number(1.0, "> 0", "factor on weight_variance in all layers but the last")
    engine: str = word(
        "auto | fused | torch | triton",
        "implementation; auto: fused on a CPU, on a GPU triton where it takes the images, else torch; "
        "fused: compiled loops; torch: the reference; triton: GPU programs in float32",
    )
    tile_megabytes: float = number(
        32.0,
        "> 0",
        "memory of a tile's covariance maps on a CPU; on a GPU 32 times as much",
    )

    def make(self, image: Image, **common: Unpack[Training]) -> Kernel:
        import numpy as np

        from kfx.kernels.cnngp.architectures import architecture
        from kfx.kernels.flipped import Flipped

        assert image is not None
        size = (image[0], image[1])
        network = architecture(self.architecture, size, self.hidden_weight_multiplier, self.depth)
        each = [1.0] * network.convolutions if self.variances == "per_layer" else 1.0
        kernel = self.constructor()(
            network,
            np.multiply(self.weight_variance, each),
            np.multiply(self.bias_variance, each),
            variance_scaling=self.variance_scaling,
            engine=self.engine,
            tile_megabytes=self.tile_megabytes,
            **common,
        )
        return Flipped(kernel) if self.flips else kernel

    def own_threads(self) -> bool:
        return self.engine == "torch"

    def check_device(self, name: str, device: torch.device) -> None:
        if self.engine == "fused" and device.type != "cpu":
            raise ConfigError(f"kernel.engine=fused: needs a CPU, and device={name}; use auto")
        if self.engine == "triton" and device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise ConfigError(f"kernel.engine=triton: needs a CUDA device, and device={name}; use auto")


@option(
    "kernel",
    "cntk",
    "Neural tangent kernel of a convolutional network with infinitely many channels, with pooling; exact gradients",
)
class CNTKOption(CNNGPOption):
    builds = "kfx.kernels.cnngp.kernel:CNTK"
    quick = ("kernel.depth=3", "dataset.n_train=60", "dataset.n_test=30", "sampler.batch_size=20")

    architecture: str = word(_ARCHITECTURES, "layers of the network; their sizes follow the image", default="cntk_gap")
    engine: str = word(
        "auto | fused | torch", "implementation; auto: fused on a CPU, torch on a GPU; fused: compiled loops"
    )
    fixed_layers: str = word(
        "none | first | last | first_and_last",
        "layers whose weights are not trained; first_and_last: as published for CNTK (Arora et al. 2019)",
    )

    def constructor(self) -> Callable[..., Kernel]:
        return partial(super().constructor(), fixed_layers=self.fixed_layers)
