"""Laws of the likelihood, leave-one-out and generalized cross-validation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from kfx.criteria.fields import fractional_brownian
from kfx.criteria.law import Row, row
from kfx.kernels import RBF, Matern
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.regression import coefficients, inverse_diagonal, left_out_scale
from kfx.objectives import gcv, loo


def amplitudes(gram: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the factors of Θ by maximum likelihood, YᵀΘ⁻¹Y/n, and by leave-one-out errors, (2, outputs).

    gram: Θ, (n, n). y: (n, outputs).
    """
    factored, targets = Factored(torch.from_numpy(gram)), torch.from_numpy(y)
    alpha = coefficients(factored, targets, 0.0)
    return np.stack([(targets * alpha).mean(dim=0), left_out_scale(alpha, inverse_diagonal(factored.factor(0.0)))])


def brownian(points: int, seeds: int) -> Iterator[Row]:
    """Exponents of N in the amplitude of the Brownian motion kernel, min(x, x'), at N = points/4 to 4 points.

    By likelihood it is the mean of squared increments over their variance, by leave-one-out of squared second
    differences, and of the last increment, over theirs.
    """
    sizes = [points * 2**k // 4 for k in range(5)]
    for is_integral, hurst in ((integral, h) for integral in (False, True) for h in (0.25, 0.5, 0.75)):
        expected = (-1.0, -min(1 + 2 * hurst, 2.0)) if is_integral else (1 - 2 * hurst,) * 2
        for seed in range(seeds):
            path = fractional_brownian(hurst, 16 * sizes[-1], np.random.default_rng([seed, 60]))
            path, found = np.cumsum(path) / len(path) if is_integral else path, []
            for n in sizes:
                x, step = np.arange(1, n + 1) / n, 16 * sizes[-1] // n
                found.append(amplitudes(np.minimum.outer(x, x), path[step::step, None])[:, 0])
            setting = f"{'integrated ' if is_integral else ''}fractional BM, H = {hurst:g}"
            slopes = np.polyfit(np.log(sizes), np.log(found), 1)[0]
            for by, slope, theory in zip(("likelihood", "leave-one-out"), slopes, expected, strict=True):
                yield row(f"{by}'s amplitude ~ N^a", setting, seed, slope, "=", theory, 0.15)


def deterministic(points: int, seeds: int) -> Iterator[Row]:
    """Exponents of N in a Matérn kernel's amplitude by likelihood for a sine and a kink, d = 1, to N = 2 points.

    The kernel's space is H^α, α = ν + 1/2; the sine is in it, and |x − c| in H^β for β < 3/2.
    """
    sizes, law = [points * 2**k // 4 for k in range(4)], "likelihood's amplitude of f ~ N^a"
    for nu, seed in ((nu, seed) for nu in (0.5, 1.5, 2.5) for seed in range(seeds)):
        rng, found = np.random.default_rng([seed, 70]), []
        a, c = rng.random(), rng.integers(sizes[0] // 4, 3 * sizes[0] // 4) / sizes[0]  # midway between nodes for all N
        for n in sizes:
            x = (np.arange(n) + 0.5) / n
            y = np.stack([np.sin(2 * np.pi * (x - a)), abs(x - c)], axis=1)
            found.append(amplitudes(Matern(0.5, nu).gram(x[:, None]), y)[0])
        sine, kink = np.polyfit(np.log(sizes), np.log(found), 1)[0]
        yield row(law, f"Matérn {2 * nu:g}/2, sine", seed, sine, "=", -1.0, 0.1)
        yield row(law, f"Matérn {2 * nu:g}/2, |x − c|", seed, kink, "≤", max(2 * (nu - 1) - 1, -1.0), 0.1)


_MODELS = {
    "right": Matern(0.8, 1.5),
    "half its length": Matern(0.4, 1.5),
    "twice its length": Matern(1.6, 1.5),
    "too rough, ν = 1/2": Matern(0.8, 0.5),
    "too smooth, ν = 5/2": Matern(0.8, 2.5),
}


def misspecified(draws: int, seeds: int, n: int = 70, dimensions: int = 5, tested: int = 200) -> Iterator[Row]:
    """How wrong the predicted variance is with the amplitude by likelihood, over that with it by leave-one-out.

    Draws of a Matérn 3/2 process on a Latin hypercube. Wrong by Bachoc's risk-on-target ratio: at a point the root mean
    square over draws of predicted variance less expected squared error given y, over the mean of the latter; here the
    root mean square over `tested` points.
    """
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 80])
        cells = rng.permuted(np.tile(np.arange(n)[:, None], dimensions), axis=0)
        x = np.concatenate([(cells + rng.random(cells.shape)) / n, rng.random((tested, dimensions))])
        solved = {name: _kriging(kernel.gram(x), n) for name, kernel in _MODELS.items()}
        gram, weights, variance = solved["right"]
        y = np.linalg.cholesky(gram) @ rng.standard_normal((n, draws))
        for name, (own, own_weights, own_variance) in solved.items():
            error = ((weights - own_weights) @ y) ** 2 + variance[:, None]
            risks = [((error - s * own_variance[:, None]) ** 2).mean(axis=1) for s in amplitudes(own, y)]
            by_likelihood, by_left_out = (np.sqrt((risk / error.mean(axis=1) ** 2).mean()) for risk in risks)
            better, relation = ("likelihood", "<") if name == "right" else ("leave-one-out", ">")
            law = f"{better} better, kernel {'right' if name == 'right' else 'wrong'}"
            yield row(law, f"d = {dimensions}, n = {n}, {name}", seed, by_likelihood / by_left_out, relation, 1.0)


def _kriging(gram: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first n points' Gram matrix, the weights that predict the others, and their variances."""
    weights = np.linalg.solve(gram[:n, :n], gram[:n, n:]).T
    return gram[:n, :n], weights, gram.diagonal()[n:] - (weights * gram[n:, :n]).sum(axis=1)


def inefficiency(points: int, seeds: int, draws: int = 50) -> Iterator[Row]:
    """The loss at the λ that a criterion chooses over the least loss, for one function with noise.

    Expected: criterion and loss are means over draws (Craven & Wahba); else of a single draw (Li).
    """
    lambdas, sizes = np.geomspace(1e-3, 1e2, 51), (points // 8, points // 2, 2 * points)
    for n, seed in ((n, seed) for n in sizes for seed in range(seeds)):
        x = (np.arange(n) + 0.5) / n
        truth = (np.sin(6 * x) + abs(x - 0.4))[:, None]
        y = truth + 0.3 * np.random.default_rng([seed, 90]).standard_normal((n, draws))
        gram, targets, found = torch.from_numpy(Matern(0.3, 1.5).gram(x[:, None])), torch.from_numpy(y), []
        for value in lambdas:
            factored = Factored(gram)
            errors = ((gram @ coefficients(factored, targets, value)).numpy() - truth) ** 2
            scores = [
                of(factored, t, 1, value, False)[0] for of, t in ((gcv, targets), (loo, targets), (gcv, targets[:, :1]))
            ]
            found.append([errors.mean(), errors[:, 0].mean(), *scores])
        loss, own, by_gcv, by_loo, own_gcv = np.transpose(found)
        stated = ("=", 1.0, 0.1) if n == sizes[-1] else ()  # theory speaks of the limit
        for by, score in (("gcv", by_gcv), ("loo", by_loo)):
            yield row("expected inefficiency → 1", f"{by}, N = {n}", seed, loss[score.argmin()] / loss.min(), *stated)
        single = own[own_gcv.argmin()] / own.min()
        yield row("inefficiency → 1", f"gcv, N = {n}", seed, single, *stated)


def kare(points: int, seeds: int, tested: int = 4000) -> Iterator[Row]:
    """KARE, which is generalized cross-validation, over the mean squared error at noisy test points, N = 2 points."""
    n = 2 * points
    for d, seed in ((d, seed) for d in (10, 100) for seed in range(seeds)):
        rng, kernel = np.random.default_rng([seed, 100]), RBF(d**0.5)
        x = rng.standard_normal((n + tested, d))
        y = (np.sin(x[:, 0]) + x[:, 1] * x[:, 2] / 2 + 0.3 * rng.standard_normal(len(x)))[:, None]
        gram, to_tested = kernel.gram(x[:n]), kernel.gram(x[n:], x[:n])
        for value in (0.1, 1.0, 10.0):
            alpha = coefficients(torch.from_numpy(gram), torch.from_numpy(y[:n]), value).numpy()
            ratio = gcv(gram, y[:n], 1, value, False)[0] / ((to_tested @ alpha - y[n:]) ** 2).mean()
            yield row("KARE over risk", f"RBF, d = {d}, N = {n}, λ = {value:g}", seed, ratio, "=", 1.0, 0.1)
