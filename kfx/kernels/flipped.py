"""A kernel of images averaged over mirror images."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kfx.kernels.base import Kernel
from kfx.kernels.covariance import Pull
from kfx.kernels.parameters import Value
from kfx.kernels.wrapped import Wrapped


class Flipped(Wrapped[Kernel]):
    """K̄(x, z) = ¼ Σ K(x', z') over x' in {x, x mirrored} and z' in {z, z mirrored} (Li et al. 2019, §3).

    It has the parameters of `kernel`. Points are images (n, channels, height, width), mirrored left to right. A Gram
    matrix takes four times as long as the kernel's.
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)

    def multiplications(self, x: torch.Tensor, y: torch.Tensor) -> float:
        return 4 * super().multiplications(x, y)

    def _gram(self, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        return _mean(self.kernel._gram(_both(x), None if y is None else _both(y)))

    def _diagonal(self, x: torch.Tensor) -> torch.Tensor:
        kernel = self.kernel
        beside = [kernel._gram(image, image.flip(-1))[0, 0] for image in x.split(1)]
        of_images = kernel._diagonal(_both(x)).reshape(2, -1).mean(dim=0)
        return (of_images + torch.stack(beside)) / 2 if beside else of_images

    def _pullback(self, x: torch.Tensor) -> tuple[torch.Tensor, Pull]:
        both, kernel = _both(x), self.kernel
        gram, pull = kernel._pullback(both)
        gram.diagonal().copy_(kernel._diagonal(both))

        def pull_both(cotangent: torch.Tensor, inputs: bool) -> tuple[Mapping[str, Value], torch.Tensor | None]:
            by_name, to_both = pull(cotangent.repeat(2, 2) / 4, inputs)
            return by_name, None if to_both is None else to_both[: len(x)] + to_both[len(x) :].flip(-1)

        return _mean(gram), pull_both


def _both(x: torch.Tensor) -> torch.Tensor:
    """Images and their mirror images, (2n, channels, height, width)."""
    return torch.cat([x, x.flip(-1)])


def _mean(gram: torch.Tensor) -> torch.Tensor:
    n, m = gram.shape
    return gram.reshape(2, n // 2, 2, m // 2).mean(dim=(0, 2))
