"""Kernels of one other kernel: on points that a map moves, or with further parameters."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Generic, Self, TypeVar, cast

import torch

from kfx.kernels.base import Composed, Kernel
from kfx.kernels.covariance import Pull
from kfx.kernels.parameters import Bounds, Given, Value

K = TypeVar("K", bound=Kernel)


class Wrapped(Composed, Generic[K]):
    """k(f(x), f(x')) for a kernel k, `kernel`, and a map f of points, `_mapped`, the identity unless overridden.

    own: parameters in addition to those of k, by name. hidden: parameters of k that are none of this kernel.
    """

    def __init__(
        self,
        kernel: K,
        own: Mapping[str, Given] | None = None,
        trainable: Iterable[str] | None = None,
        bounds: Mapping[str, Bounds] | None = None,
        *,
        signed: Iterable[str] = (),
        hidden: Container[str] = (),
        own_last: bool = True,
    ) -> None:
        names = {name: name for name in kernel.parameters if name not in hidden}
        super().__init__([kernel], [names], own or {}, trainable, bounds, signed=signed, own_last=own_last)

    @property
    def kernel(self) -> K:
        """The kernel k, with the present parameters."""
        (kernel,), (names,) = self._made_of, self._names
        return cast(K, kernel._replaced({name: self._values[name] for name in names}))

    def _mapped(self, x: torch.Tensor) -> torch.Tensor:
        """Return f(x), (n, …). x: (n, …)."""
        return x

    def require_good_on(self, x: torch.Tensor) -> None:
        self.kernel.require_good_on(self._mapped(x))

    def fixed_on(self, x: torch.Tensor) -> Self:
        kernel = self.kernel
        fixed = kernel.fixed_on(self._mapped(x))
        return self if fixed is kernel else self._replaced(self._gathered([fixed.parameters]))

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return self.kernel._gram(self._mapped(x), None if y is None else self._mapped(y))

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel._diagonal(self._mapped(x))


class Extended(Wrapped[K]):
    """`kernel` with further parameters, those of `default_bounds`, on which its Gram matrices do not depend."""

    @property
    def _own(self) -> dict[str, torch.Tensor]:
        """The further parameters that are blocks, by name."""
        own = {name: self._values[name] for name in self.default_bounds}
        return {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}

    def _pull_own(self, cotangent: torch.Tensor, gram: torch.Tensor) -> dict[str, Value]:
        """Return the gradients of the further parameters by name, 0 by default. cotangent, gram: (n, n)."""
        return {name: torch.zeros_like(value) for name, value in self._own.items()}

    def feature_map_and_kernel(self) -> tuple[Callable[[torch.Tensor], torch.Tensor], Kernel]:
        return self.kernel.feature_map_and_kernel()

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        gram, pull = self.kernel._pullback(x)

        def pull_all(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            by_name, to_inputs = pull(cotangent, inputs)
            return {**by_name, **self._pull_own(cotangent, gram)}, to_inputs

        return gram, pull_all


def within(kernel: Kernel) -> Iterator[Kernel]:
    """Yield the kernel, and each one that it extends by parameters, from the outside in."""
    yield kernel
    while isinstance(kernel, Extended):
        kernel = kernel.kernel
        yield kernel
