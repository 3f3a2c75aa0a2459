"""kfx's kernels and objectives in torch's autograd, with their exact pullbacks as derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from kfx.kernels.base import Kernel
from kfx.kernels.space import Space
from kfx.numerics.arrays import Vector, as_kind
from kfx.numerics.regularization import Regularization
from kfx.objectives import rho
from kfx.objectives.problem import require_symmetric

__all__ = ["KernelModule", "gram", "objective_loss", "rho_loss"]


def gram(
    kernel: Kernel | KernelModule,
    x: torch.Tensor,
    y: torch.Tensor | None = None,
    *,
    parameters: torch.Tensor | None = None,
) -> torch.Tensor:
    """K(x, x), (n, n), or K(x, y), (n, m), with gradients to the points and to `parameters` if they require them.

    kernel: a kernel, or a `KernelModule`, whose own parameters are then used.
    x: (n, features) or (n, channels, height, width). y: (m, …), or None for x.
    parameters: (p,), instead of `kernel.flat`, in the order of `kernel.names`.
    The backward pass is the kernel's pullback, which for a CNNGP computes the matrix again tile by tile and keeps
    nothing in between. A gradient through K(x, y) takes that of K(z, z), z the points of both.
    ValueError for empty points or parameters of another shape; RuntimeError for a second derivative.
    """
    if isinstance(kernel, KernelModule):
        if parameters is not None:
            raise ValueError("parameters: a KernelModule brings its own; leave them out")
        return gram(kernel.base, x, y, parameters=kernel.flat)
    if any(points is not None and not points.numel() for points in (x, y)):
        shapes = ", ".join(str(tuple(points.shape)) for points in (x, y) if points is not None)
        raise ValueError(f"points of shape {shapes}: expected at least one point with at least one feature")
    own = torch.as_tensor(kernel.flat) if parameters is None else parameters
    if y is None:
        whole: torch.Tensor = _Gram.apply(kernel, own, x)
        return whole
    x = x if x.is_floating_point() else x.to(y)  # whole numbers would cut those of y
    if torch.is_grad_enabled() and any(each.requires_grad for each in (own, x, y)):
        both: torch.Tensor = _Gram.apply(kernel, own, torch.cat([x, y.to(x)]))
        return both[: len(x), len(x) :]
    with torch.no_grad():
        cross: torch.Tensor = _with(kernel, own).gram(x, y)
        return cross


class _Gram(torch.autograd.Function):
    """K(x, x) by `Kernel.pullback`."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, parameters: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        own = _with(kernel, parameters)
        ctx.shape, ctx.like = parameters.shape, parameters.new_empty(0)
        if not any(ctx.needs_input_grad):
            return own.gram(x)
        ctx.save_for_backward(parameters, x)  # torch then refuses a backward pass after a change in place
        result, ctx.pull = own.pullback(x)
        return result.clone()  # the pullback may keep the matrix, and the caller may change it

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> tuple[None, torch.Tensor | None, torch.Tensor | None]:
        _require_first_derivative()
        _ = ctx.saved_tensors
        symmetric = (cotangent + cotangent.mT) / 2  # Θ is symmetric, so only this part matters
        to_points = None
        if ctx.needs_input_grad[2]:
            slope, to_points = ctx.pull(symmetric, inputs=True)
        else:
            slope = ctx.pull(symmetric)
        return None, as_kind(slope, ctx.like).reshape(ctx.shape), to_points


def _require_first_derivative() -> None:
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(
            "kfx gives first derivatives alone: a gradient of a gradient would be lost; leave create_graph out"
        )


def _with(kernel: Kernel, parameters: torch.Tensor) -> Kernel:
    flat: Vector = kernel.flat
    if parameters.shape != tuple(flat.shape):
        names = ", ".join(kernel.names[:4]) + (", …" if len(kernel.names) > 4 else "")
        raise ValueError(f"parameters has shape {tuple(parameters.shape)}; expected ({len(flat)},): {names}")
    return kernel.with_flat(as_kind(parameters.detach(), flat))


class KernelModule(nn.Module):
    """A kernel as a torch module, with one trainable vector, `coordinates`, for any torch optimizer.

    space: `log` trains the logarithms of parameters that cannot be negative, `raw` the parameters themselves. Bounds
        are not kept. ValueError for a parameter that is 0 and whose logarithm would be trained.

    `module(x)` and `module(x, y)` are Gram matrices; `module.kernel` is the kernel with its present parameters.
    """

    def __init__(self, kernel: Kernel, space: str = "log") -> None:
        super().__init__()
        if space not in ("log", "raw"):
            raise ValueError(f"space={space!r}: expected log or raw")
        self.base = kernel
        found = Space(space, kernel.bounds)
        for name, value, is_logged in zip(kernel.names, kernel.flat, found.is_logged, strict=True):
            if is_logged and not value > 0:
                at = f"{name}={float(value):g}"
                raise ValueError(f"{at}: has no logarithm to train; start above 0, or take space='raw'")
        self.is_logged: torch.Tensor
        self.register_buffer("is_logged", torch.as_tensor(found.is_logged))
        self.coordinates = nn.Parameter(torch.as_tensor(found.to_coordinates(kernel.flat)).clone())

    @property
    def flat(self) -> torch.Tensor:
        """The parameters, (p,), in the order of `kernel.names`."""
        harmless = torch.where(self.is_logged, self.coordinates, torch.zeros_like(self.coordinates))
        return torch.where(self.is_logged, harmless.exp(), self.coordinates)

    @property
    def kernel(self) -> Kernel:
        """The kernel with its present parameters."""
        return _with(self.base, self.flat)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        """K(x, x), (n, n), or K(x, y), (n, m), as `gram`."""
        return gram(self, x, y)

    def extra_repr(self) -> str:
        return repr(self.kernel)


def objective_loss(
    objective: Callable[..., tuple[float, Any]],
    gram: Any,
    y: torch.Tensor,
    sample_size: int,
    regularization: float | Regularization | None = None,
) -> torch.Tensor:
    """An objective of `kfx.objectives` on any Gram matrix in torch, as a differentiable scalar, float64.

    objective: its cotangent G is the derivative.
    gram: (n, n), symmetric, the sample's points first; a tensor, or an object with `to_dense`, such as GPyTorch's lazy
        matrices. It may come from any differentiable features.
    y: (n,) or (n, outputs), without gradients. sample_size: N_c, 1 ≤ N_c < n.
    regularization: λ; a number is absolute, None means 1e-4, centered.
    ValueError for arguments that do not fit; NumericalError if the objective cannot be computed.
    """
    if not isinstance(gram, torch.Tensor) and hasattr(gram, "to_dense"):
        gram = gram.to_dense()
    if not isinstance(gram, torch.Tensor) or gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise ValueError(f"gram: expected a square matrix, got {tuple(getattr(gram, 'shape', ())) or gram!r}")
    if not gram.is_floating_point():
        raise ValueError(f"gram: expected real floating-point numbers, got {gram.dtype}")
    if len(gram):
        require_symmetric(gram.detach())
    y = torch.as_tensor(y, device=gram.device)
    if not isinstance(sample_size, int) or isinstance(sample_size, bool):
        raise ValueError(f"sample_size={sample_size!r}: expected a whole number")
    if y.requires_grad:
        raise ValueError("y requires gradients, which an objective does not give; pass y.detach()")
    own = Regularization() if regularization is None else regularization
    loss: torch.Tensor = _Objective.apply(objective, (gram + gram.mT) / 2, y, sample_size, own)
    return loss


def rho_loss(
    gram: Any, y: torch.Tensor, sample_size: int, regularization: float | Regularization | None = None
) -> torch.Tensor:
    """ρ of any Gram matrix in torch (Owhadi & Yoo 2019, eq. 3.4), as a differentiable scalar to be minimised.

    gram: (n, n). y: (n,) or (n, outputs). Arguments and errors as for `objective_loss`.
    """
    return objective_loss(rho, gram, y, sample_size, regularization)


class _Objective(torch.autograd.Function):
    """The value of an objective of Θ, with its cotangent G as the derivative."""

    @staticmethod
    def forward(
        ctx: Any,
        objective: Callable[..., tuple[float, Any]],
        gram: torch.Tensor,
        y: torch.Tensor,
        sample_size: int,
        regularization: float | Regularization,
    ) -> torch.Tensor:
        wanted = ctx.needs_input_grad[1]
        value, cotangent = objective(gram.detach(), y, sample_size, regularization, wanted)
        if wanted:
            ctx.save_for_backward(cotangent.to(gram))
        return torch.tensor(value, dtype=torch.float64, device=gram.device)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[None, torch.Tensor, None, None, None]:
        _require_first_derivative()
        (cotangent,) = ctx.saved_tensors
        return None, cotangent * slope.to(cotangent), None, None, None
