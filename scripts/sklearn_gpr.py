"""A plugin for comparisons: hyperparameters fitted by scikit-learn's GaussianProcessRegressor.

kfx run --plugin scripts/sklearn_gpr.py optimizer=sklearn_gpr …
"""

from __future__ import annotations

import contextlib
import math
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch

from kfx.config.fields import number
from kfx.config.option import ConfigView, option
from kfx.kernels import RBF, Kernel, Matern, RationalQuadratic, Regularized, Scaled, Sum
from kfx.numerics.regularization import Regularization
from kfx.optimizers.journal import State
from kfx.optimizers.loop import Answer, FitSetup, Optimizer, Question
from kfx.optimizers.loss import Evaluation
from kfx.optimizers.options import OptimizerOption
from kfx.outcomes import ConfigError, Event, NumericalError
from kfx.sampling.samplers import Batch

AMPLITUDES, NOISES = (1e-6, 1e6), (1e-10, 1e2)


class _BudgetSpent(Exception):
    pass


@dataclass(frozen=True)
class _Found:
    """One evaluation of the likelihood: its negative logarithm, the kernel's parameters, and the noise."""

    told: float
    values: dict[str, Any]
    noise: float


class SklearnGPR(Optimizer):
    """Maximises the marginal likelihood of one batch by scikit-learn, over lengths, amplitudes and noise variance.

    iterations: largest number of evaluations of the likelihood with its gradient; L-BFGS may converge before. Lengths
    and exponents stay within the kernel's bounds, amplitudes and noise within `AMPLITUDES` and `NOISES`.

    The fitted kernel has the noise variance as its own λ. `told` in the trace is the negative log likelihood that
    scikit-learn minimised, for targets divided by their root mean square. `objective` and `rho` are computed by kfx on
    the same batch with the same kernel and λ, after scikit-learn has finished.
    """

    def start(self, setup: FitSetup) -> None:
        self.own = setup.kernel.kernel if isinstance(setup.kernel, Regularized) else setup.kernel
        self.found: list[_Found] | None = None

    def state(self) -> State:
        if self.found is None:
            return {"found": None}
        return {"found": [{"told": f.told, "values": f.values, "noise": f.noise} for f in self.found]}

    def restore(self, state: State) -> None:
        self.found = None if state["found"] is None else [_Found(**entry) for entry in state["found"]]

    def keeps_batch(self, iteration: int) -> bool:
        return True

    def ask(self, iteration: int, batch: Batch) -> Question | None:
        if self.found is None:
            self.found = self._fitted(batch)
        if iteration == len(self.found):  # it has converged
            return None
        self.shown = self.found[iteration]
        brought = self._kernel(self.shown)
        given = self.setup.kernel
        values = {k: v for k, v in brought.parameters.items() if k in given.parameters}
        return Question(given.with_parameters(**values).flat, gradient=False, kernel=brought)

    def tell(self, evaluation: Evaluation) -> Answer:
        return Answer(told=self.shown.told)

    def result(self) -> Kernel:
        assert self.found
        return self._kernel(min(self.found, key=lambda entry: entry.told))

    def _kernel(self, found: _Found) -> Regularized:
        return Regularized(self.own.with_parameters(**found.values), Regularization(found.noise, "absolute"))

    def _fitted(self, batch: Batch) -> list[_Found]:
        """Return every point at which scikit-learn's fit to a batch evaluated the likelihood."""
        from scipy.optimize import minimize
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import WhiteKernel

        data = self.setup.x, self.setup.y
        x, y = (part[torch.as_tensor(batch.indices, device=part.device)].cpu().numpy() for part in data)
        y = y.astype(np.float64)
        scale = math.sqrt(float(np.mean(y**2)))
        if not scale > 0:
            raise NumericalError(Event.DIVERGED, "every target of the batch is zero")
        terms = [_term(c, part) for c, part in _terms(self.own)]
        whole = reduce(operator.add, [*(term for term, _ in terms), WhiteKernel(1e-2, NOISES)])
        found: list[_Found] = []

        def maximise(objective: Callable[..., Any], theta: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, float]:
            best = (math.inf, theta)

            def recorded(theta: np.ndarray) -> tuple[float, np.ndarray]:
                nonlocal best
                if len(found) == self.iterations:
                    raise _BudgetSpent
                value, slope = objective(theta)
                if value < best[0]:
                    best = (value, theta.copy())
                there, noise = _returned(self.own, terms, whole.clone_with_theta(theta))
                found.append(_Found(float(value), there.parameters, noise))
                return float(value), slope

            with contextlib.suppress(_BudgetSpent):
                minimize(recorded, theta, method="L-BFGS-B", jac=True, bounds=bounds)
            return best[1], best[0]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a parameter at its bound, see the trace
            flat = x.reshape(len(x), -1).astype(np.float64)
            GaussianProcessRegressor(whole, optimizer=maximise).fit(flat, y / scale)
        return found


def has_counterpart(kernel: Kernel) -> bool:
    """Return whether scikit-learn has this kernel: RBF, rational quadratic, Matérn, or a sum of scaled ones."""
    return all(isinstance(part, (RBF, Matern, RationalQuadratic)) for _, part in _terms(kernel))


def _terms(kernel: Kernel) -> list[tuple[float, Kernel]]:
    """Return the squared coefficients and the kernels of a sum; (1, kernel) for any other kernel."""
    scaled = [part for part in kernel.parts if isinstance(part, Scaled)] if isinstance(kernel, Sum) else []
    if isinstance(kernel, Sum) and len(scaled) == len(kernel.parts):
        return [(float(part.parameters["coefficient"]) ** 2, part.parts[0]) for part in scaled]
    return [(1.0, kernel)]


def _term(coefficient: float, kernel: Kernel) -> tuple[Any, Callable[[Any], dict[str, float]]]:
    """Return scikit-learn's kernel for c² K, and a function from its fitted form to K's parameters."""
    from sklearn.gaussian_process import kernels

    own, bounds = kernel.parameters, kernel.limits
    if isinstance(kernel, RationalQuadratic):  # (1 + r² / 2αl²)^−α, returned with β = 1 since β^2α may overflow
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
    """Return kfx's kernel with the fitted parameters of scikit-learn's, and λ."""
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


@option(
    "optimizer",
    "sklearn_gpr",
    "For comparison: scikit-learn's GaussianProcessRegressor fits lengths, amplitudes and noise to one batch",
)
class SklearnGPROption(OptimizerOption):
    fits_regularization = True
    views_batches = False
    minimizes_objective = False

    iterations: int = number(100, "whole >= 1", "largest number of evaluations of the marginal likelihood")

    def build(self, config: ConfigView) -> SklearnGPR:
        return SklearnGPR(*self.arguments(config))

    def check_start(self, config: ConfigView, kernel: Kernel) -> None:
        if not has_counterpart(kernel):
            raise ConfigError(
                f"kernel={config.kernel.name}: scikit-learn has no such kernel; optimizer=sklearn_gpr takes rbf, "
                "rational_quadratic, matern and rbf_network"
            )
        if config.kernel.trainable is not None:
            raise ConfigError("kernel.trainable: optimizer=sklearn_gpr fits every parameter; set null")
        if config.regularization.selection != "fixed":
            raise ConfigError(
                f"regularization.selection={config.regularization.selection}: optimizer=sklearn_gpr fits the noise "
                "itself; set fixed"
            )
        super().check_start(config, kernel)
