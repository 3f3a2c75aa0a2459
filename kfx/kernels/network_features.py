"""A Gaussian kernel on the features of a network, whose weights are its parameters (Owhadi & Yoo 2019, §10)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Self

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from kfx.kernels import options
from kfx.kernels.base import Kernel, Pull
from kfx.kernels.module_kernel import ModuleKernel, Tape
from kfx.kernels.parameters import ANYWHERE, NORM, Bounds, Value
from kfx.kernels.stationary import RBF
from kfx.kernels.stationary_tensors import squared_distances
from kfx.numerics.arrays import as_kind
from kfx.numerics.streams import seeded

_BLOCK = 2000
_RESERVED = ("gamma", "regularization", "head.weight", "head.bias")


class NetworkFeatures(ModuleKernel):
    """exp(−γ ‖F(x) − F(x')‖²), F a network: its weights are blocks, under the names that the module has for them.

    module: from points, (n, …), to features, (n, features); in evaluation mode, so that dropout does nothing. It must
        treat each point by itself, change nothing in place that it did not make, and give the same twice.
    gamma: γ; 0 stands for 4 over the mean squared distance of the features of the points at hand (of all pairs, a
        point with itself among them): those of the batch in a fit, of y in K(x, y), else of x. `fixed_on` fixes it.
        Trained only if `trainable` names it.
    length_gradient: where γ is of the batch, `differentiated`, or `held`, as if it were a number.
    mixed_precision: the network computes in bfloat16; points, weights, features and Gram matrices stay in float32.
    remake: makes another such module, for weights to be drawn anew; else its parts' `reset_parameters` are called.

    A module without parameters, or with batch normalization, which couples the points of a batch, is refused.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = options.NetworkFeaturesOption.default_bounds()
    may_be_zero = frozenset({"gamma"})

    def __init__(
        self,
        module: nn.Module,
        gamma: float = 0.0,
        length_gradient: str = "differentiated",
        *,
        mixed_precision: bool = False,
        remake: Callable[[], nn.Module] | None = None,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        _require_usable(module)
        blocks = {name: weights.detach() for name, weights in module.named_parameters()}
        if length_gradient not in ("differentiated", "held"):
            raise ValueError(f"length_gradient takes differentiated or held, got {length_gradient!r}")
        moved = [name for name, weights in module.named_parameters() if weights.requires_grad]
        names = moved if trainable is None else list(trainable)
        if "gamma" in names and gamma == 0:
            raise ValueError("gamma=0 is taken from the batch; to train it, start from a number > 0")
        self.signed = frozenset(blocks)
        limits = {**dict.fromkeys(blocks, ANYWHERE), **(bounds or {})}
        super().__init__({"gamma": gamma, **blocks}, names, limits)
        self.length_gradient, self.mixed_precision, self._remake = length_gradient, mixed_precision, remake
        self._hold(module)

    # ---- features

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """F(x), (n, features), in x's dtype."""
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
        """ValueError unless the network gives features of these points, the same twice, and of each by itself."""
        try:
            together, again = self.features(x), self.features(x)
            alone = torch.cat([self.features(one) for one in x.split(1)])
        except RuntimeError as error:
            shape = tuple(x.shape[1:])
            said = " ".join(str(error).split())
            raise ValueError(f"NetworkFeatures: its network fails on points of shape {shape}: {said}") from error
        if not bool(torch.isfinite(together).all()):
            raise ValueError("NetworkFeatures: its network gives features that are no finite numbers")
        if not torch.equal(together, again):
            raise ValueError("NetworkFeatures: its network gives other features for the same points each time")
        scale = float(together.abs().max())
        if not torch.allclose(together, alone, rtol=1e-4, atol=1e-4 * scale + 1e-12):
            raise ValueError("NetworkFeatures: the features of a point depend on the others of its batch")

    # ---- γ

    def _gamma(self, mean: torch.Tensor) -> float | torch.Tensor:
        """γ, for this mean squared distance; a tensor where it is of the points, so that no GPU waits for it."""
        return self._scalar("gamma") or 4 / mean

    def fixed_on(self, x: torch.Tensor) -> Self:
        """With γ of these points, if it had none; itself where their features are all the same: evaluation then says
        what is wrong."""
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
        return squared_distances(self.features(x), others).mul_(-gamma).exp_()

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_ones((1,)).expand(len(x))

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        tape = self.taped(x)
        of_batch = self._scalar("gamma") == 0
        differentiated = of_batch and self.length_gradient == "differentiated"
        gram, pull_features = gaussian(tape.made.detach(), self._scalar("gamma") or None, differentiated)

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            to_features, to_gamma = pull_features(cotangent)
            by_name, to_points = tape.pull([(tape.made, to_features)], inputs)
            return {**by_name, "gamma": 0.0 if of_batch else float(to_gamma)}, to_points

        return gram, pull

    def taped(self, x: torch.Tensor, head: Mapping[str, torch.Tensor] | None = None) -> Tape[torch.Tensor]:
        """One forward pass that gradients can be pulled back through. head: further leaves, beside the weights."""
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
        """Whether the network is a chain of layers, whose outputs are known."""
        return isinstance(self._module, nn.Sequential) and len(self._module) > 1

    def feature_map_and_kernel(self) -> tuple[Callable[[torch.Tensor], torch.Tensor], Kernel]:
        gamma = self._scalar("gamma")
        return (self.features, RBF(1 / math.sqrt(2 * gamma))) if gamma else super().feature_map_and_kernel()

    # ---- other weights, another place

    def fresh(self, rng: np.random.Generator) -> dict[str, Value]:
        """Weights as the network's layers draw them; γ as it is."""
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
    """Θ = exp(−γ ‖f_i − f_j‖²), and the function of a cotangent of it that gives those of f and γ.

    gamma: None for 4 over the mean squared distance m of all pairs, whose dependence on f is `differentiated` or not.
    """
    r2 = squared_distances(f, None)
    used = 4 / r2.mean(dtype=torch.float64) if gamma is None else gamma  # a tensor: no GPU waits for it
    gram = (r2 * -used).exp_()

    def pull(cotangent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # dΘ = Θ (−γ dr² − r² dγ), and γ = 4/m has dγ = −γ²/4 dm
        w = cotangent * gram
        to_gamma = -(w * r2).sum(dtype=torch.float64)
        to_r2 = w.mul_(-used)
        if differentiated:
            to_r2 -= (to_gamma * (used**2 / 4 / len(f) ** 2)).to(to_r2)
        # ∂(r²_ij)/∂f_i = 2 (f_i − f_j), and the pair stands in both triangles
        centred, to_r2 = f - f.mean(dim=0), to_r2.to(f)
        return 4 * (to_r2.sum(dim=1, keepdim=True) * centred - to_r2 @ centred), to_gamma

    return gram, pull


def _mean_squared_distance(features: torch.Tensor) -> torch.Tensor:
    """Of all pairs, a point with itself among them."""
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
                f"NetworkFeatures: {type(part).__name__} couples the points of a batch, sample and all, and K(x, x') "
                "would be of others too; use GroupNorm or LayerNorm"
            )


def _redraw(module: nn.Module) -> None:
    for name, part in module.named_modules():
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()
        elif next(part.parameters(recurse=False), None) is not None:
            what = f"{type(part).__name__} {name}".strip()
            raise ValueError(f"NetworkFeatures: {what} cannot draw its weights anew; give `remake`, a function")
