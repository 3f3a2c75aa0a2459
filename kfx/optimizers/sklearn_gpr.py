"""The rival from outside: hyperparameters by scikit-learn's GaussianProcessRegressor."""

from __future__ import annotations

import contextlib
import math
import operator
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import torch

from kfx.kernels import RBF, Kernel, Matern, RationalQuadratic, Regularized, Scaled, Sum
from kfx.optimizers.loss import Loss
from kfx.outcomes import Event, NumericalError
from kfx.regularization import Regularization
from kfx.sampling import FixedSampler
from kfx.streams import Streams

AMPLITUDES, NOISES = (1e-6, 1e6), (1e-10, 1e2)


class _BudgetSpent(Exception):
    pass


class SklearnGPR:
    """Marginal likelihood of one batch maximised by scikit-learn, over lengths, amplitudes and the noise variance.

    iterations: evaluations of the likelihood, with its gradient, at most; its L-BFGS may converge before. Lengths and
    exponents stay within the kernel's bounds, amplitudes and noise within `AMPLITUDES` and `NOISES`.

    The kernel that comes back brings the noise as its λ. `told` in the trace is the negative log likelihood that
    scikit-learn minimised, of targets divided by their root mean square; `objective` and `rho` are measured by kfx on
    the same batch with the same kernel and λ. A run that is stopped begins its fit anew.
    """

    diagnostics: tuple[str, ...] = ()

    def __init__(self, loss: Callable[..., Loss], sampler: FixedSampler, iterations: int) -> None:
        self.loss, self.sampler, self.iterations = loss, sampler, iterations

    def fit(self, kernel: Kernel, data: tuple[torch.Tensor, torch.Tensor], streams: Streams, record: Any) -> Kernel:
        from scipy.optimize import minimize
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import WhiteKernel

        start = kernel.kernel if isinstance(kernel, Regularized) else kernel
        self.sampler.start(*data)
        if (restored := record.restore(streams)) and restored[0] == self.iterations:  # it had ended
            state = restored[1]
            return Regularized(start.with_parameters(**state["values"]), Regularization(state["noise"], "absolute"))
        record.checkpoint(0, streams, {})
        batch = self.sampler.draw(streams["batches"])
        x, y = (part[torch.as_tensor(batch.indices, device=part.device)].cpu().numpy() for part in data)
        y = y.astype(np.float64)
        terms = [_term(c, part) for c, part in _terms(start)]
        whole = reduce(operator.add, [*(term for term, _ in terms), WhiteKernel(1e-2, NOISES)])
        found: list[tuple[float, Kernel, float]] = []

        def maximise(objective: Callable[..., Any], theta: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, float]:
            best = (math.inf, theta)

            def recorded(theta: np.ndarray) -> tuple[float, np.ndarray]:
                nonlocal best
                if len(found) == self.iterations:
                    raise _BudgetSpent
                value, slope = objective(theta)
                if value < best[0]:
                    best = (value, theta.copy())
                there, noise = _returned(start, terms, whole.clone_with_theta(theta))
                brought = Regularized(there, Regularization(noise, "absolute"))
                evaluation = self.loss(brought, *data)(brought.flat, batch, gradient=False)
                shown = kernel.with_parameters(
                    **{k: v for k, v in brought.parameters.items() if k in kernel.parameters}
                ).flat
                record.row(len(found), replace(evaluation, vector=shown), len(found) + 1, told=float(value))
                found.append((float(value), there, noise))
                return float(value), slope

            with contextlib.suppress(_BudgetSpent):
                minimize(recorded, theta, method="L-BFGS-B", jac=True, bounds=bounds)
            return best[1], best[0]

        scale = math.sqrt(float(np.mean(y**2)))
        if not scale > 0:
            raise NumericalError(Event.DIVERGED, "every target of the batch is zero")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a parameter at its bound: the trace shows it
            flat = x.reshape(len(x), -1).astype(np.float64)
            GaussianProcessRegressor(whole, optimizer=maximise).fit(flat, y / scale)
        _, chosen, noise = min(found, key=lambda entry: entry[0])
        record.checkpoint(self.iterations, streams, {"values": chosen.parameters, "noise": noise})
        return Regularized(chosen, Regularization(noise, "absolute"))


def has_counterpart(kernel: Kernel) -> bool:
    """Whether scikit-learn has this kernel: RBF, rational quadratic, Matérn, or a sum of scaled ones."""
    return all(isinstance(part, (RBF, Matern, RationalQuadratic)) for _, part in _terms(kernel))


def _terms(kernel: Kernel) -> list[tuple[float, Kernel]]:
    """Squared coefficients and kernels of a sum."""
    scaled = [part for part in kernel.parts if isinstance(part, Scaled)] if isinstance(kernel, Sum) else []
    if isinstance(kernel, Sum) and len(scaled) == len(kernel.parts):
        return [(float(part.parameters["coefficient"]) ** 2, part.parts[0]) for part in scaled]
    return [(1.0, kernel)]


def _term(coefficient: float, kernel: Kernel) -> tuple[Any, Callable[[Any], dict[str, float]]]:
    """scikit-learn's kernel for c² K, and the way back to K's parameters."""
    from sklearn.gaussian_process import kernels

    own, bounds = kernel.parameters, kernel._bounds
    if isinstance(kernel, RationalQuadratic):  # (1 + r² / 2αl²)^−α: back with β = 1, for β^2α soon leaves all numbers
        alpha, beta, gamma = (float(own[name]) for name in ("alpha", "beta", "gamma"))
        theirs = kernels.RationalQuadratic(beta / math.sqrt(2 * alpha * gamma), alpha, (1e-4, 1e4), bounds["alpha"])

        def back(fitted: Any) -> dict[str, float]:
            return {"alpha": fitted.alpha, "beta": 1.0, "gamma": 1 / (2 * fitted.alpha * fitted.length_scale**2)}

    else:
        is_rbf = isinstance(kernel, RBF)
        sigma = float(own["sigma"])
        theirs = (
            kernels.RBF(sigma, bounds["sigma"]) if is_rbf else kernels.Matern(sigma, bounds["sigma"], nu=kernel.nu)  # type: ignore[attr-defined]
        )

        def back(fitted: Any) -> dict[str, float]:
            return {"sigma": float(fitted.length_scale)}

    return kernels.ConstantKernel(coefficient, AMPLITUDES) * theirs, back


def _returned(start: Kernel, terms: list[Any], fitted: Any) -> tuple[Kernel, float]:
    """kfx's kernel with the parameters of scikit-learn's, and λ."""
    noise = float(fitted.k2.noise_level)
    parts: list[Any] = []
    rest = fitted.k1
    for _ in terms[1:]:
        parts.insert(0, rest.k2)
        rest = rest.k1
    parts.insert(0, rest)
    found = [(part.k1.constant_value, back(part.k2)) for part, (_, back) in zip(parts, terms, strict=True)]
    if len(_terms(start)) == 1 and not isinstance(start, Sum):
        ((amplitude, values),) = found
        return start.with_parameters(**values), noise / amplitude
    changed: dict[str, float] = {}
    for i, (amplitude, values) in enumerate(found):
        changed[f"{i}.coefficient"] = math.sqrt(amplitude)
        changed |= {f"{i}.0.{name}": value for name, value in values.items()}
    return start.with_parameters(**changed), noise
