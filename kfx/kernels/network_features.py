"""A Gaussian kernel on the features of a network, whose weights are its parameters (Owhadi & Yoo 2019, §10)."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Self

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from kfx.kernels import network_options
from kfx.kernels.base import Kernel
from kfx.kernels.covariance import Pull
from kfx.kernels.module_kernel import ModuleKernel, Tape
from kfx.kernels.names import NORM
from kfx.kernels.parameters import ANYWHERE, Bounds, Value
from kfx.kernels.stationary import RBF
from kfx.kernels.stationary_tensors import FAR, about_middle, squared_distances
from kfx.numerics.arrays import as_kind
from kfx.numerics.streams import seeded

_BLOCK = 2000
_RESERVED = ("gamma", "regularization", "head.weight", "head.bias")


class NetworkFeatures(ModuleKernel):
    """exp(−γ ‖F(x) − F(x')‖²) with a network F, whose weights are parameters under the module's names for them.

    module: maps points, (n, …), to features, (n, features), in evaluation mode, so that dropout has no effect. It must
        treat each point independently, must not change its input in place, and must be deterministic.
    gamma: γ. With 0, γ = 4 / m, where m is the mean squared distance of features over all pairs, those of a point with
        itself included: in a fit over the batch, in K(x, y) over y, else over x. `fixed_on` fixes it. γ is trained
        only if `trainable` names it.
    length_gradient: for gamma=0, whether gradients include γ's dependence on the batch: `differentiated` or `held`.
    mixed_precision: whether the network computes in bfloat16; points, weights, features and Gram matrices stay in
        float32.
    dropout: share of the features set to zero in a pullback, anew for each point; the others are multiplied by
        1/(1 − dropout). The seed depends on the points alone. Gram matrices without a pullback have all features.
    remake: returns a new module with random weights; None to call `reset_parameters` of the module's parts.

    Raises ValueError for a module without parameters, for one with batch normalization, which couples the points of a
    batch, and for a dropout outside [0, 1).
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = network_options.NetworkFeaturesOption.default_bounds()
    may_be_zero = frozenset({"gamma"})

    def __init__(
        self,
        module: nn.Module,
        gamma: float = 0.0,
        length_gradient: str = "differentiated",
        *,
        mixed_precision: bool = False,
        dropout: float = 0.0,
        remake: Callable[[], nn.Module] | None = None,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        _require_usable(module)
        blocks = {name: weights.detach() for name, weights in module.named_parameters()}
        network_options.NetworkFeaturesOption.require(length_gradient=length_gradient, dropout=dropout)
        moved = [name for name, weights in module.named_parameters() if weights.requires_grad]
        names = moved if trainable is None else list(trainable)
        if "gamma" in names and gamma == 0:
            raise ValueError("gamma=0 is taken from the batch; to train it, start from a number > 0")
        self.signed = frozenset(blocks)
        limits = {**dict.fromkeys(blocks, ANYWHERE), **(bounds or {})}
        super().__init__({"gamma": gamma, **blocks}, names, limits)
        self.length_gradient, self.mixed_precision, self.dropout = length_gradient, mixed_precision, dropout
        self._remake = remake
        self._hold(module)

    # ---- features

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return F(x), (n, features), in x's dtype. x: points, (n, …)."""
        with torch.no_grad():
            weights = self._weights(x)
            return torch.cat([self._forward(weights, block) for block in x.split(_BLOCK)])

    def _forward(self, weights: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        buffers = {name: buffer.clone() for name, buffer in self._module.named_buffers()}
        before = x._version
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.mixed_precision):
            made = torch.func.functional_call(self._module, {**weights, **buffers}, (x,))
        if self.mixed_precision and isinstance(made, torch.Tensor):
            made = made.to(x.dtype)
        if x._version != before:
            raise ValueError("NetworkFeatures: its network changes the points in place; have it work on a copy")
        if not isinstance(made, torch.Tensor) or made.ndim != 2 or len(made) != len(x) or made.dtype != x.dtype:
            got = f"{tuple(made.shape)} in {made.dtype}" if isinstance(made, torch.Tensor) else type(made).__name__
            raise ValueError(f"NetworkFeatures: its network gave {got} for {len(x)} points; expected (n, features)")
        return made

    def require_good_on(self, x: torch.Tensor) -> None:
        """Raise ValueError unless the network gives finite features of points x, (n, …), deterministically and for
        each point independently."""
        x = x[:3]
        try:
            together, again = self.features(x), self.features(x)
            alone = torch.cat([self.features(one) for one in x.split(1)])
        except RuntimeError as error:
            shape = tuple(x.shape[1:])
            said = " ".join(str(error).split())
            raise ValueError(f"NetworkFeatures: its network fails on points of shape {shape}: {said}") from error
        if not bool(torch.isfinite(together).all()):
            raise ValueError("NetworkFeatures: its network gives features that are not finite")
        if not torch.equal(together, again):
            raise ValueError("NetworkFeatures: its network gives different features for the same points")
        scale = float(together.abs().max())
        if not torch.allclose(together, alone, rtol=1e-4, atol=1e-4 * scale + 1e-12):
            raise ValueError("NetworkFeatures: the features of a point depend on other points of the batch")

    # ---- γ

    def _gamma(self, mean: torch.Tensor) -> float | torch.Tensor:
        """Return γ for this mean squared distance; a tensor where it depends on the points, so that no GPU waits."""
        return self._scalar("gamma") or 4 / mean

    def fixed_on(self, x: torch.Tensor) -> Self:
        """Return the kernel with γ computed from points x, (n, …), where gamma is 0.

        Where all features are equal, the kernel is returned unchanged, and evaluation reports the error.
        """
        if self._scalar("gamma"):
            return self
        mean = float(_mean_squared_distance(self.features(x)))
        return self._replaced({"gamma": 4 / mean}) if 0 < mean < math.inf else self

    # ---- the kernel

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        if y is None:
            return gaussian(self.features(x), self._scalar("gamma") or None, False)[0]
        others = self.features(y)
        gamma = self._gamma(_mean_squared_distance(others))
        return squared_distances(self.features(x), others, 4 / gamma).mul_(-gamma).exp_()

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_ones((1,)).expand(len(x))

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        tape = self.taped(x)
        of_batch = self._scalar("gamma") == 0
        differentiated = of_batch and self.length_gradient == "differentiated"
        features, mask = tape.made.detach(), None
        if self.dropout:
            mask = dropout_mask(features, self.dropout, x.flatten(1).sum(dim=1).cpu().numpy().tobytes())
            features = features * mask
        gram, pull_features = gaussian(features, self._scalar("gamma") or None, differentiated)

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            to_features, to_gamma = pull_features(cotangent)
            if mask is not None:
                to_features = to_features * mask
            by_name, to_points = tape.pull([(tape.made, to_features)], inputs)
            return {**by_name, "gamma": 0.0 if of_batch else float(to_gamma)}, to_points

        return gram, pull

    def taped(self, x: torch.Tensor, head: Mapping[str, torch.Tensor] | None = None) -> Tape[torch.Tensor]:
        """Return one forward pass at points x, (n, …), for `Tape.pull`; it made F(x), (n, features).

        head: further tensors, in addition to the weights, for which gradients are wanted, by name.
        """
        with torch.enable_grad():
            leaves = self._leaves(x, head or {})
            points = x.detach().requires_grad_()
            inner: list[torch.Tensor] = []
            layers = self._module.children() if isinstance(self._module, nn.Sequential) else ()
            hooks = [layer.register_forward_hook(lambda _, __, made: inner.append(made)) for layer in layers]
            try:
                made = self._forward({name: leaves[name] for name in self._blocks()}, points)
            finally:
                for hook in hooks:
                    hook.remove()
        return Tape(points, leaves, inner[:-1], made)

    @property
    def has_layers(self) -> bool:
        """Whether the network is an `nn.Sequential` of several layers, so that the layers' outputs are known."""
        return isinstance(self._module, nn.Sequential) and len(self._module) > 1

    def feature_map_and_kernel(self) -> tuple[Callable[[torch.Tensor], torch.Tensor], Kernel]:
        gamma = self._scalar("gamma")
        return (self.features, RBF(1 / math.sqrt(2 * gamma))) if gamma else super().feature_map_and_kernel()

    # ---- new random weights

    def fresh(self, rng: np.random.Generator) -> dict[str, Value]:
        """Return random weights, drawn as the network's layers do, and the present γ, by name."""
        with seeded(int(rng.integers(2**63))):
            if self._remake is not None:
                module = self._remake()
            else:
                module = copy.deepcopy(self._module).cpu()
                _redraw(module)
        drawn = {name: as_kind(weights.detach(), self._blocks()[name]) for name, weights in module.named_parameters()}
        return {"gamma": self._scalar("gamma"), **drawn}

    def __repr__(self) -> str:
        count, gamma = sum(block.numel() for block in self._blocks().values()), self._scalar("gamma")
        return f"NetworkFeatures({count} weights, gamma={gamma or 'of the batch'})"


def gaussian(
    f: torch.Tensor, gamma: float | None, differentiated: bool
) -> tuple[torch.Tensor, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]]:
    """Return Θ = exp(−γ ‖f_i − f_j‖²), (n, n), and its pullback.

    The pullback maps a cotangent of Θ, (n, n), to those of f, (n, features), and of γ, a scalar.
    f: features, (n, features). gamma: γ; None for 4 / m, where m is the mean squared distance of all pairs.
    differentiated: whether the cotangent of f includes that dependence of γ.
    """
    r2 = squared_distances(f, None, _mean_squared_distance(f) if gamma is None else 4 / gamma)
    used = 4 / r2.mean(dtype=torch.float64) if gamma is None else gamma  # a tensor, so that no GPU waits
    gram = (r2 * -used).exp_()

    def pull(cotangent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # dΘ = Θ (−γ dr² − r² dγ), and γ = 4/m has dγ = −γ²/4 dm
        w = cotangent * gram
        to_gamma = -(w * r2).sum(dtype=torch.float64)
        to_r2 = w.mul_(-used)
        if differentiated:
            to_r2 -= (to_gamma * (used**2 / 4 / len(f) ** 2)).to(to_r2)
        # ∂(r²_ij)/∂f_i = 2 (f_i − f_j), and each pair is in both triangles
        centred, to_r2 = _centred(f), to_r2.to(f)
        return 4 * (to_r2.sum(dim=1, keepdim=True) * centred - to_r2 @ centred), to_gamma

    return gram, pull


def _centred(f: torch.Tensor) -> torch.Tensor:
    """Return the features, (n, features), minus their mean, or minus a middle where a far one has moved the mean."""
    sizes = f.norm(dim=1)
    return about_middle(f) if bool(sizes.max() > FAR * sizes.median()) else f - f.mean(dim=0)


def dropout_mask(features: torch.Tensor, share: float, batch: bytes) -> torch.Tensor:
    """Return a factor for each feature, (n, features): 0 for this share of them, 1/(1 − share) for the others.

    batch: the factors depend on it alone, so that a resumed run repeats them.
    """
    generator = torch.Generator(features.device).manual_seed(zlib.crc32(batch))
    kept = torch.rand(features.shape, generator=generator, device=features.device) >= share
    return kept.to(features.dtype) / (1 - share)


def _mean_squared_distance(features: torch.Tensor) -> torch.Tensor:
    """Return the mean over all pairs, those of a point with itself included."""
    centred = features.to(torch.float64) - features.mean(dim=0, dtype=torch.float64)
    return 2 * centred.square().sum(dim=1).mean()


def _require_usable(module: nn.Module) -> None:
    blocks = dict(module.named_parameters())
    if not blocks:
        raise ValueError("NetworkFeatures: its network has no parameters to train")
    for name in blocks:
        if name in _RESERVED or name.endswith(NORM):
            raise ValueError(f"NetworkFeatures: its network has a parameter {name}, a name of kfx's own; rename it")
    for name, weights in blocks.items():
        if isinstance(weights, nn.UninitializedParameter) or not weights.is_floating_point():
            raise ValueError(f"NetworkFeatures: {name} holds no real numbers yet; give a module that is ready to use")
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            raise ValueError(
                f"NetworkFeatures: {type(part).__name__} couples the points of a batch, so that K(x, x') would "
                "depend on other points; use GroupNorm or LayerNorm"
            )


def _redraw(module: nn.Module) -> None:
    for name, part in module.named_modules():
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()
        elif next(part.parameters(recurse=False), None) is not None:
            what = f"{type(part).__name__} {name}".strip()
            raise ValueError(f"NetworkFeatures: {what} cannot draw its weights anew; give `remake`, a function")
