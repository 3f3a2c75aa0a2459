"""A kfx kernel as a kernel of GPyTorch, and an objective in the place of its marginal log likelihoods."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from kfx.version import to_install

try:
    import gpytorch
except ImportError as error:
    raise ImportError(f"kfx.gpytorch needs GPyTorch: {to_install('gpytorch')}") from error

from linear_operator.operators import ZeroLinearOperator

import kfx.objectives
from kfx.config.registry import OPTIONS, load
from kfx.kernels.base import Kernel
from kfx.objectives.options import ObjectiveOption
from kfx.sampling.samplers import sample_size
from kfx.torch import KernelModule, gram, objective_loss

__all__ = ["KfxKernel", "Objective"]


class KfxKernel(gpytorch.kernels.Kernel):
    """A kfx kernel in a GPyTorch model, such as an exact Gaussian process with a CNNGP; its gradients are exact
    pullbacks.

    kernel: any kernel of kfx.
    image_shape: (channels, height, width) into which GPyTorch's points, rows, are folded for a kernel of images.
    space: `log` or `raw`, as for `KernelModule`.
    options: of GPyTorch's kernels, such as `active_dims`.
    ValueError for batches of Gaussian processes, because a kernel of kfx has one set of parameters.
    """

    has_lengthscale = False

    def __init__(
        self, kernel: Kernel, image_shape: Sequence[int] | None = None, space: str = "log", **options: Any
    ) -> None:
        super().__init__(**options)
        self.image_shape = None if image_shape is None else tuple(image_shape)
        self.module = KernelModule(kernel, space)

    @property
    def kernel(self) -> Kernel:
        """The kfx kernel with its present parameters."""
        return self.module.kernel

    def forward(self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, **params: Any) -> torch.Tensor:
        """K(x1, x2), (n, m), or with `diag` its diagonal, (n,). x1: (n, features). x2: (m, features)."""
        if params.get("last_dim_is_batch"):
            raise ValueError("last_dim_is_batch: a kernel of kfx takes whole points")
        one, two = self._points(x1), self._points(x2)
        same = one is two or (one.shape == two.shape and torch.equal(one, two))
        if diag and not torch.is_grad_enabled() and same:
            return self.kernel.diagonal(one)
        found = gram(self.module, one) if same else gram(self.module, one, two)
        return found.diagonal() if diag else found

    def _points(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim != 2:
            raise ValueError(f"expected points (n, features) without a batch dimension, got {tuple(x.shape)}")
        if self.image_shape is None:
            return x
        if math.prod(self.image_shape) != x.shape[1]:
            raise ValueError(f"image_shape={self.image_shape}: points have {x.shape[1]} features")
        return x.reshape(len(x), *self.image_shape)


class Objective(gpytorch.mlls.ExactMarginalLogLikelihood):
    """An objective of kfx in the place of a marginal log likelihood, with its exact gradient.

    `mll = Objective(likelihood, model, "loo")`, then `loss = -mll(model(x), y)`, in the training loop of any exact
    Gaussian process. The value, a scalar, is the objective with its sign changed, plus the added losses and the
    logarithms of priors, divided by the number of data; so are objectives that are sums over points. Thus `nll` is
    `ExactMarginalLogLikelihood`, and `loo_likelihood` is `LeaveOneOutPseudoLikelihood`.

    likelihood: a Gaussian one, whose noise is part of A = Θ + noise. model: its Gaussian process.
    objective: a name in `kfx.objectives`, or of a plugin. settings: its keywords, as `form="held_out"`.
    sample_proportion: N_c / N, > 0 and < 1, the share of the points that are the sample, of an objective that has one.
        They are drawn anew at each call, by a generator with `seed`, so such a value is random: no line search.

    Noise has a gradient where kfx trains λ by the objective (`nll`, `loo`, `loo_likelihood`, `crps`, `gcv`, and
    `rho_prediction` with `held_out`), and then any structure. Otherwise it stays as it is, as λ, with one variance
    for all: ρ, for one, rewards more of it as such.
    The mean is subtracted, and stays as it is: points are left out of the covariance alone, and a mean fitted to all
    targets has seen them. In its place, a `ConstantKernel` or `LinearKernel` is left out with each point.
    Several tasks: the entries of y, (n, tasks), are n · tasks points with one output. `loo` leaves out one entry, and
    keeps the other tasks of its point; the sample holds all tasks of its points. Kronecker products are multiplied out.
    ValueError for an unknown name or setting, batches of Gaussian processes, targets that are not finite, and several
    variances of noise where λ is one; NumericalError where the objective cannot be computed; UserWarning for
    parameters of the mean or the noise that get no gradient.
    """

    def __init__(
        self,
        likelihood: Any,
        model: Any,
        objective: str,
        *,
        sample_proportion: float = 0.5,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(likelihood, model)
        if not 0 < sample_proportion < 1:
            raise ValueError(f"sample_proportion={sample_proportion}: expected a number > 0 and < 1")
        self.option = _option(objective, settings)
        self.objective = self.option.build()
        self.sample_proportion, self.generator = sample_proportion, torch.Generator().manual_seed(seed)

    def forward(self, function_dist: Any, target: torch.Tensor, *params: Any, **kwargs: Any) -> torch.Tensor:
        """The value, a scalar. function_dist: the model's output. target: y, (n,) or (n, tasks). params, kwargs: for
        the likelihood, such as `noise`."""
        _require_one_process(function_dist, target)
        if function_dist.mean.requires_grad:
            warnings.warn(
                "the mean gets no gradient from an objective of kfx: centre the targets or add a ConstantKernel, and "
                "take a ZeroMean or model.mean_module.requires_grad_(False)",
                stacklevel=3,
            )
        covariance, noise = self._covariance(function_dist, params, kwargs)
        n, tasks = (*target.shape, 1)[:2]
        size, count = sample_size(n, self.sample_proportion), n * tasks
        is_outside = torch.randperm(n, generator=self.generator) >= size
        keys = is_outside[:, None] + torch.rand(n, tasks, generator=self.generator)  # the sample first; random folds
        order = keys.reshape(-1).argsort().to(target.device)
        places = torch.arange(count, device=target.device).reshape(n, tasks)
        if not getattr(function_dist, "_interleaved", True):  # the covariance has task after task
            places = places.reshape(tasks, n).mT
        rows, y = places.reshape(-1)[order], (target - function_dist.mean).detach().reshape(-1)[order]
        loss = objective_loss(self.objective, covariance[rows][:, rows], y, size * tasks, noise).to(covariance)
        value = -loss if self.option.is_sum else -loss * count
        return self._add_other_terms(value, params) / count  # type: ignore[no-any-return]

    def _covariance(self, function_dist: Any, params: Any, kwargs: Any) -> tuple[torch.Tensor, float]:
        """Return A, (N, N), N = n · tasks, and 0 to be added to it, or Θ and λ."""
        if self.option.trains_regularization:  # then it is a function of A alone
            return self.likelihood(function_dist, *params, **kwargs).lazy_covariance_matrix.to_dense(), 0.0
        mean, n = function_dist.mean, function_dist.event_shape.numel()
        alone = type(function_dist)(mean, ZeroLinearOperator(n, n, dtype=mean.dtype, device=mean.device))
        noise = self.likelihood(alone, *params, **kwargs).lazy_covariance_matrix.to_dense()
        name, variance = self.option.name, noise.detach()[0, 0]
        if not torch.equal(noise, variance * torch.eye(n).to(noise)):
            raise ValueError(
                f"objective={name}: λ is the likelihood's noise, expected one variance for all points and tasks, got "
                "several; take such a likelihood, or nll, loo, loo_likelihood, crps or gcv"
            )
        if noise.requires_grad:
            warnings.warn(
                f"the noise gets no gradient from objective={name}: set likelihood.noise, then "
                "likelihood.requires_grad_(False)",
                stacklevel=4,
            )
        return function_dist.lazy_covariance_matrix.to_dense(), float(variance)


def _option(name: str, settings: dict[str, Any]) -> ObjectiveOption:
    """Return the option of an objective, with its function's defaults: a model has its own amplitude, so none is
    profiled."""
    load()
    every, ours = OPTIONS["objective"], kfx.objectives.__all__
    known = [each for each in every if each in ours or every[each].origin != "kfx"]
    if name not in known:
        raise ValueError(f"objective={name!r}: expected one of {', '.join(known)}")
    taken = inspect.signature(getattr(kfx.objectives, name)).parameters if name in ours else {}
    own = {key: taken[key].default for key in every[name].fields() if key in taken}
    if unknown := [key for key in settings if key not in every[name].fields()]:
        raise ValueError(f"{unknown[0]}: objective={name} takes {', '.join(every[name].fields()) or 'no settings'}")
    made: ObjectiveOption = every[name](**own | settings)
    return made


def _require_one_process(function_dist: Any, target: torch.Tensor) -> None:
    """Raise ValueError unless the output is one Gaussian process at the targets, which are finite."""
    if not isinstance(function_dist, gpytorch.distributions.MultivariateNormal):
        raise ValueError(f"expected the model's output, a MultivariateNormal, got {type(function_dist).__name__}")
    if function_dist.batch_shape or target.shape != function_dist.event_shape:
        raise ValueError(
            f"expected one Gaussian process and its targets, got a batch of shape {tuple(function_dist.batch_shape)}, "
            f"values of {tuple(function_dist.event_shape)}, targets of {tuple(target.shape)}; make an Objective for "
            "each process of a batch"
        )
    if not bool(target.isfinite().all()):
        raise ValueError(f"target: {int((~target.isfinite()).sum())} values are not finite; leave those points out")
