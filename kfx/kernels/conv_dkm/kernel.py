"""The kernel of a convolutional deep kernel machine, and how it starts from training images."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from kfx.kernels.base import Kernel
from kfx.kernels.conv_dkm.architectures import Architecture
from kfx.kernels.conv_dkm.gram import InducingGram, factor, inverse_factor
from kfx.kernels.conv_dkm.gram_layer import GramLayer
from kfx.kernels.conv_dkm.skip import Skip
from kfx.kernels.conv_dkm.top import AveragePooling
from kfx.kernels.covariance import Pull
from kfx.kernels.module_kernel import ModuleKernel, Tape
from kfx.kernels.parameters import ANYWHERE, Bounds, Value
from kfx.numerics.arrays import as_kind
from kfx.numerics.streams import seeded
from kfx.outcomes import NumericalError

_BLOCK = 250
PATCHES = "patches.patches"
_MEAN = ".mean"


class ConvDKM(ModuleKernel):
    """The Nyström kernel of a deep kernel machine: K_ti K_ii⁻¹ K_it of the top layer, with k_tt on the diagonal.

    architecture: the layers; their weights are the kernel's parameters. torch draws the weights and patches, and every
        G_ii is the identity, until `with_patches` starts the kernel from images.
    likelihood: of the outputs, `categorical` or `gaussian`. noise_variance: of the Gaussian likelihood.

    The diagonal of K(X, X) includes the variance that inducing points do not explain; K(x, x') of two equal points does
    not. In ridge regression and in ρ this part acts as an additional λ.

    A normalization over the present points, `batch` or `location`, uses the batch in a fit, y in K(x, y), and x
    otherwise, until `fixed_on` fixes it.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {}

    def __init__(
        self,
        architecture: Architecture,
        likelihood: str = "categorical",
        noise_variance: float = 1.0,
        *,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        module = architecture.build()
        blocks = {name: weights.detach() for name, weights in module.named_parameters()}
        moved = [name for name, weights in module.named_parameters() if weights.requires_grad]
        self.signed = frozenset(blocks)
        super().__init__(
            blocks, moved if trainable is None else trainable, {**dict.fromkeys(blocks, ANYWHERE), **(bounds or {})}
        )
        self.architecture, self.likelihood, self.noise_variance = architecture, likelihood, noise_variance
        self._hold(module)

    # ---- where it starts

    def fresh(self, rng: np.random.Generator) -> dict[str, Value]:
        """Return, by name, new random weights C, the same patches, every G_ii equal to K_ii, and initial scales and
        variances."""
        with seeded(int(rng.integers(2**63))):
            module = self.architecture.build()
        return self._started(module, self._blocks()[PATCHES])

    def with_patches(self, x: torch.Tensor, rng: np.random.Generator) -> Self:
        """Return the kernel with inducing patches drawn from images, the same weights C, and every G_ii equal to K_ii.

        x: images, (n, channels, height, width). Raises ValueError where they have fewer patches than inducing points.
        """
        wanted, channels, size, _ = self._blocks()[PATCHES].shape
        rows, columns = x.shape[2] - size + 1, x.shape[3] - size + 1
        if wanted > len(x) * rows * columns:
            raise ValueError(f"{wanted} inducing patches, more than the {len(x) * rows * columns} of the images")
        chosen = torch.as_tensor(rng.choice(len(x) * rows * columns, wanted, replace=False), device=x.device)
        windows = x.unfold(2, size, 1).unfold(3, size, 1)
        image, place = chosen // (rows * columns), chosen % (rows * columns)
        patches = windows[image, :, place // columns, place % columns].reshape(wanted, channels, size, size)
        return self._replaced(self._started(self.module, patches))

    def _started(self, module: nn.Module, patches: torch.Tensor) -> dict[str, Value]:
        weights = dict(module.named_parameters())
        weights[PATCHES].data = patches.detach().cpu().double()
        _put_at_kernels(module.double().cpu(), self.architecture.image)
        held = self._blocks()
        return {name: as_kind(value.detach(), held[name]) for name, value in weights.items()}

    # ---- the Gram matrix of the top layer

    def top(self, x: torch.Tensor) -> InducingGram:
        """Return the top layer's Gram matrix of inducing points and images, ti (n, P) and t (n,), without gradients.

        x: images, (n, channels, height, width).
        """
        kernel = self if self._is_fixed else self.fixed_on(x)
        module = kernel._bound(kernel._weights(x))
        with torch.no_grad():
            parts = [module(block) for block in x.split(_BLOCK)]
        return parts[0].having(parts[0].ii, torch.cat([g.ti for g in parts]), torch.cat([g.t for g in parts]))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return K_ti L⁻ᵀ, (n, P), with K_ii = L Lᵀ; inner products of its rows are the kernel off the diagonal."""
        return _features(self.top(x))

    def taped(self, x: torch.Tensor, head: Mapping[str, torch.Tensor] | None = None) -> Tape[InducingGram]:
        """Return one forward pass at images x, (n, channels, height, width), for `Tape.pull`.

        head: further tensors, in addition to the weights, for which gradients are wanted, by name.
        """
        with torch.enable_grad():
            leaves = self._leaves(x, head or {})
            points = x.detach().requires_grad_()
            made = self._bound({name: leaves[name] for name in self._blocks()})(points)
        return Tape(points, leaves, [], made)

    def _bound(self, weights: Mapping[str, torch.Tensor]) -> nn.Module:
        """Return a copy of the module with these tensors as parameters, also for later recomputation by a gradient."""
        return _with_parameters(self._module, {id(p): weights[name] for name, p in self._module.named_parameters()})

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        if y is None:
            features = self.features(x)
            return features @ features.mT
        fixed = self.fixed_on(y)
        return fixed.features(x) @ fixed.features(y).mT

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(x).t

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        tape = self.taped(x)
        with torch.enable_grad():
            gram = nystrom(tape.made)

        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            return tape.pull([(gram, cotangent.to(gram))], inputs)

        return gram.detach().clone(), pull

    def inner_grams(self, x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the Gram matrix of images, (n, n), of each block, pooled over positions as by the top layer.

        The part that inducing points explain, without the corrected diagonal, follows as `<name>.explained`, (n, n).
        """
        kernel = self if self._is_fixed else self.fixed_on(x)
        module, pool = kernel._bound(kernel._weights(x)), AveragePooling()
        with torch.no_grad():
            parts: list[Any] = list(x.split(_BLOCK))
            for name, layer in module.named_children():
                parts = [layer(part) for part in parts]
                if isinstance(layer, Skip) or name == "top_normalization":
                    pooled = parts if parts[0].t.ndim == 1 else [pool(part) for part in parts]
                    whole = pooled[0].having(
                        pooled[0].ii, torch.cat([g.ti for g in pooled]), torch.cat([g.t for g in pooled])
                    )
                    name, features = name.removesuffix("_normalization"), _features(whole)
                    yield name, nystrom(whole)
                    yield f"{name}.explained", features @ features.mT

    def feature_map_and_kernel(self) -> tuple[Callable[[torch.Tensor], torch.Tensor], Kernel]:
        def mapped(x: torch.Tensor) -> torch.Tensor:
            top = self.top(x)
            return torch.cat([_features(top), top.t[:, None]], dim=1)

        return (mapped, _Nystrom({})) if self._is_fixed else super().feature_map_and_kernel()

    # ---- normalization over the present points

    @property
    def _is_fixed(self) -> bool:
        return all(bool((value > 0).all()) for name, value in self._blocks().items() if name.endswith(_MEAN))

    def fixed_on(self, x: torch.Tensor) -> Self:
        """Return the kernel with mean variances fixed from images x, (n, channels, height, width).

        They are averages over blocks of images, each normalized by its own, as in batch normalization. Where they
        cannot be computed, the kernel is returned without them, and evaluation reports the error.
        """
        if self._is_fixed:
            return self
        module = self._bound(self._weights(x))
        found: dict[str, torch.Tensor] = {}
        with torch.no_grad(), contextlib.suppress(NumericalError):
            for block in x.split(_BLOCK):
                for name, mean in module(block).means.items():
                    found[name + _MEAN] = found.get(name + _MEAN, 0.0) + mean * (len(block) / len(x))
        return self._replaced({name: as_kind(mean, self._blocks()[name]) for name, mean in found.items()})

    def __repr__(self) -> str:
        inducing = "/".join(map(str, self.architecture.inducing))
        return f"ConvDKM({inducing} inducing points, strength {self.architecture.strength:g})"


def _with_parameters(module: nn.Module, values: Mapping[int, torch.Tensor]) -> nn.Module:
    """Return a copy of a module that shares all but its parameters, whose values are given by their ids. A deep copy
    takes twenty times as long."""
    made = copy.copy(module)
    made.__dict__["_parameters"] = {name: p if p is None else values[id(p)] for name, p in module._parameters.items()}
    made.__dict__["_modules"] = {
        name: part if part is None else _with_parameters(part, values) for name, part in module._modules.items()
    }
    return made


class _Nystrom(Kernel):
    """The kernel of rows (φ, k), (n, P + 1): φ·φ', and k on the diagonal."""

    default_bounds: ClassVar[Mapping[str, Bounds]] = {}

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return x[:, :-1] @ (x if y is None else y)[:, :-1].mT

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -1]

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        def pull(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            diagonal = cotangent.diagonal()
            to_features = 2 * (cotangent - torch.diag(diagonal)) @ x[:, :-1].to(cotangent)
            return {}, torch.cat([to_features, diagonal[:, None]], dim=1) if inputs else None

        return self._gram(x, None), pull


def nystrom(k: InducingGram) -> torch.Tensor:
    """Return K_ti K_ii⁻¹ K_it, (n, n), with k_tt on the diagonal. k: a top layer's Gram matrix, ti (n, P), t (n,)."""
    features = _features(k)
    gram = features @ features.mT
    return gram + torch.diag(k.t - gram.diagonal())


def _features(k: InducingGram) -> torch.Tensor:
    return k.ti @ inverse_factor(factor(k.ii)).to(k.ti)


@torch.no_grad()
def _put_at_kernels(module: nn.Module, image: tuple[int, int, int]) -> None:
    """Set each G_ii to the layer's input K_ii, by a forward pass of the module in float64."""
    layers = [layer for layer in module.modules() if isinstance(layer, GramLayer)]
    for layer in layers:
        layer.starting = True
    module(torch.zeros(1, *image, dtype=torch.float64))
    for layer in layers:
        layer.starting = False
