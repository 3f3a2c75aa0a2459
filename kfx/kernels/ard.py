"""A kernel with a length for each feature (automatic relevance determination, ARD)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Self

import numpy as np
import torch

from kfx.kernels.base import Kernel
from kfx.kernels.covariance import OfOuterProducts, Pull, SmallPullback, as_matrix
from kfx.kernels.parameters import Bounds, Given, Value
from kfx.kernels.wrapped import Wrapped
from kfx.numerics.outer_products import OuterProducts


class ARD(Wrapped[Kernel], OfOuterProducts):
    """k(x / ℓ, x' / ℓ) for a kernel k, with a length ℓ_d for each feature d (Neal 1996; MacKay 1994).

    kernel: k. A length of its own, such as `sigma`, is replaced by `lengths`: set to 1 and not trained. For a network's
        kernel 1 / ℓ_d² are the weight variances of the first layer, up to a factor that all features share.
    lengths: ℓ, (features,), in the units of x; a number is one length for all features.
    features: the names of the features, for `names` and traces.

    A feature that the targets do not depend on gets a long length. The gradients follow from those with respect to the
    points, ∂/∂ℓ_d = −Σ_i z_id ∂/∂z_id / ℓ_d with z = x / ℓ, so that all lengths cost as much as one pullback to points.
    """

    default_bounds: ClassVar[Mapping[str, Bounds]] = {"lengths": (1e-4, 1e4)}
    length: ClassVar[str | None] = "lengths"

    def __init__(
        self,
        kernel: Kernel,
        lengths: Given = 1.0,
        *,
        features: Iterable[str] = (),
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        own = () if kernel.length is None else (kernel.length,)
        inner = kernel.with_parameters(**dict.fromkeys(own, 1.0))
        super().__init__(inner, {"lengths": lengths}, trainable, bounds, hidden=own, own_last=False)
        self.distance_norm, self.labels = kernel.distance_norm, {"lengths": tuple(features)}

    def for_features(self, count: int, names: Sequence[str] = ()) -> Self:
        other = self._with_parts([self.kernel.for_features(count, names)])
        other.labels = {**other.labels, "lengths": tuple(names)}
        return other._replaced({"lengths": np.broadcast_to(np.asarray(self._values["lengths"]), count).copy()})

    def with_one_length(self) -> Self:
        """Return the kernel with a number as length, the median of its lengths; `for_features` goes back. Other
        parameters with an entry for each feature stay as they are."""
        other = self.training({*self.trainable} - {*self.labels} | {"lengths"})
        other = other._replaced({"lengths": float(np.median(np.asarray(self._values["lengths"])))})
        other.labels = {name: own for name, own in self.labels.items() if name != "lengths"}
        return other

    def _mapped(self, x: torch.Tensor) -> torch.Tensor:
        """Return z = x / ℓ in x's shape and dtype. x: (n, features)."""
        return x / self._lengths(x)

    def _lengths(self, x: torch.Tensor) -> torch.Tensor:
        lengths = self._values["lengths"]
        if isinstance(lengths, np.ndarray) and x.shape[1:] != lengths.shape:
            raise ValueError(f"points have {x[0].numel()} features, and the kernel {len(lengths)} lengths")
        return torch.as_tensor(lengths, dtype=x.dtype, device=x.device)

    def _to_lengths(self, z: torch.Tensor, moved: torch.Tensor) -> Value:
        """Return the gradient to ℓ. z: x / ℓ, (n, features). moved: the gradient with respect to z, (n, features)."""
        lengths = self._values["lengths"]
        each = -(z.to(moved) * moved).sum(dim=0).cpu().numpy() / lengths
        return each if isinstance(lengths, np.ndarray) else float(each.sum())

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        kernel, z = self.kernel, self._mapped(x)
        gram, pull_scaled = kernel._pullback(z)

        def pull(
            cotangent: torch.Tensor | OuterProducts, inputs: bool
        ) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            given = cotangent if isinstance(kernel, OfOuterProducts) else as_matrix(cotangent, z)
            by_name, moved = pull_scaled(given, True)
            assert moved is not None
            return {"lengths": self._to_lengths(z, moved), **by_name}, moved / self._lengths(moved) if inputs else None

        return gram, pull

    def small_pullback(self, x: torch.Tensor) -> SmallPullback | None:
        kernel, z = self.kernel, self._mapped(x)
        found = kernel.small_pullback(z) if isinstance(kernel, OfOuterProducts) else None
        if found is None:
            return None
        gram, pull_scaled = found
        rows, lengths = z.numpy(), self._values["lengths"]

        def pull(cotangent: OuterProducts, inputs: bool) -> tuple[Mapping[str, Value], np.ndarray | None]:
            by_name, moved = pull_scaled(cotangent, True)
            assert moved is not None
            each = -np.einsum("ij,ij->j", rows, moved) / lengths
            own = each if isinstance(lengths, np.ndarray) else float(each.sum())
            return {"lengths": own, **by_name}, moved / lengths if inputs else None

        return gram, pull
