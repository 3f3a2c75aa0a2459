"""Laws of ρ: what it finds, how it is distributed, what it depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np
import torch

from kfx.criteria.fields import SineField
from kfx.criteria.law import Row, row
from kfx.data.synthetic import noisy_sine
from kfx.kernels import RBF, Matern, RationalQuadratic
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.regularization import Regularization
from kfx.numerics.rho_law import rho_law
from kfx.objectives import nll, rho
from kfx.objectives.base import Objective


def _value(objective: Objective, gram: Factored, y: np.ndarray, sample_size: int, regularization: float) -> float:
    return objective(gram, torch.from_numpy(y.reshape(len(y), -1)), sample_size, regularization, False)[0]


def regularity(
    dimensions: int, side: int, truths: Sequence[float], searched: tuple[float, float], seeds: int
) -> Iterator[Row]:
    """The s of (−Δ)⁻ˢ that likelihood and ρ choose for draws with s* in `truths`.

    side: intervals along each dimension. searched: first and last s, in steps of 0.05.
    """
    field, exponents = SineField(dimensions, side), np.arange(searched[0], searched[1] + 0.01, 0.05)
    each = [(s, seed) for s in truths for seed in range(seeds)]
    draws = [field.draw(s, np.random.default_rng([seed, dimensions])) for s, seed in each]
    values = []
    for s in exponents:
        gram = Factored(torch.from_numpy(field.gram(s)))
        values.append([[_value(of, gram, y, field.sample_size, 0.0) for y in draws] for of in (nll, rho)])
    for (s, seed), by_likelihood, by_rho in zip(each, *exponents[np.argmin(values, axis=0)], strict=True):
        setting, of_rho = f"d = {dimensions}, s* = {s:g}, n = {(side - 1) ** dimensions}", (s - dimensions / 2) / 2
        yield row("likelihood finds s*", setting, seed, by_likelihood, "=", s, 0.1 * s)
        yield row("ρ finds (s* − d/2)/2", setting, seed, by_rho, "=", of_rho, 0.1 * of_rho)


_KERNELS = (RBF(0.3), Matern(0.3, 0.5), Matern(0.3, 1.5), Matern(1.0, 2.5), RationalQuadratic(1.0, 0.3))


def beta(draws: int, settings: int = 20) -> Iterator[Row]:
    """Kolmogorov–Smirnov tests of ρ for draws of the kernel's own process with noise λ."""
    from scipy.stats import kstest

    varied = zip(
        range(settings), cycle(_KERNELS), cycle((40, 60, 100, 150)), cycle((0.25, 0.5, 0.75)), cycle((1, 2, 10))
    )
    for i, kernel, n, p, outputs in varied:
        rng, noise, n_c = np.random.default_rng([i, 20]), (1e-4, 1e-2, 1.0)[3 * i // settings], round(p * n)
        gram = kernel.gram(rng.random((n, 2)))
        values, vectors = np.linalg.eigh(gram + noise * np.eye(n))
        root, factored = vectors * np.sqrt(values), Factored(torch.from_numpy(gram))
        ratios = [_value(rho, factored, root @ rng.standard_normal((n, outputs)), n_c, noise) for _ in range(draws)]
        chance = float(kstest(ratios, rho_law(n, n_c, outputs).cdf).pvalue)
        setting = f"{settings} settings, share with p > 0.01"
        found = row("ρ ~ Beta(m N_h/2, m N_c/2)", setting, i, chance > 0.01, "=", 1.0, 1 / settings)
        yield {**found, "p": chance, "of": f"{type(kernel).__name__}, N_f = {n}, p = {p}, m = {outputs}, λ = {noise}"}


def own_process(draws: int, seeds: int, n: int = 100) -> Iterator[Row]:
    """The mean of ρ over draws of a Matérn process, for its own kernel, a white one, and other lengths."""
    law, own, ratios = "mean of ρ over draws of a process", 0.2, np.geomspace(0.01, 10, 25)
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 30])
        x = rng.random((n, 1))
        y = np.linalg.cholesky(Matern(own, 1.5).gram(x) + 1e-8 * np.eye(n)) @ rng.standard_normal((n, draws))
        grams = [np.eye(n), *(Matern(own * ratio, 1.5).gram(x) for ratio in (1.0, *ratios))]
        factored = [Factored(torch.from_numpy(gram)) for gram in grams]
        white, at_own, *curve = (sum(_value(rho, each, one, n // 2, 1e-8) for one in y.T) / draws for each in factored)
        yield row(law, "Matérn 3/2, its own kernel", seed, at_own, "=", 0.5, 0.02)
        yield row(law, "Matérn 3/2, a white kernel", seed, white, "=", 0.5, 0.02)
        least = ratios[np.argmin(curve)]
        yield row("length at ρ's minimum, own draws", "Matérn 3/2, over the draws' length", seed, least)
        yield from (row(law, "", seed, mean, x=ratio) for ratio, mean in zip(ratios, curve, strict=True))


def scale(seeds: int, n: int = 60) -> Iterator[Row]:
    """The limit of ρ for large λ, and ρ of 100 Θ over that of Θ for each unit of λ."""
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 40])
        gram, y = Matern(0.3, 1.5).gram(rng.random((n, 2))), rng.standard_normal((n, 2))
        limit = 1 - (y[: n // 2] ** 2).sum() / (y**2).sum()
        far = rho(gram, y, n // 2, 1e8, False)[0] / limit
        yield row("ρ → 1 − ‖Y_c‖²/‖Y‖²", "λ = 1e8, ρ over the limit", seed, far, "=", 1.0, 1e-6)
        for value, unit in ((0.0, "absolute"), (0.1, "mean_diagonal"), (0.1, "centered"), (0.1, "absolute")):
            before, after = (rho(c * gram, y, n // 2, Regularization(value, unit), False)[0] for c in (1, 100))
            varies = value > 0 and unit == "absolute"
            law = "100 Θ changes ρ" if varies else "100 Θ leaves ρ as it is"
            setting = f"λ = {value:g} {unit}, ratio"
            yield row(law, setting, seed, after / before, "≠" if varies else "=", 1.0, 0.01 if varies else 1e-6)


_NOISE = (0.0, 1e-3, 1e-2, 1e-1)


def noise(nu: float | None, seeds: int, n: int = 100, halves: int = 20) -> Iterator[Row]:
    """Lengths at the minimum of ρ, mean of random halves of noisy sin x, λ = 1e-6. nu: ν of Matérn; None: RBF."""
    name, lengths = "RBF" if nu is None else f"Matérn {2 * nu:g}/2", np.geomspace(0.03, 3000, 76)
    for seed in range(seeds):
        data = [noisy_sine(n, 2, level, np.random.default_rng([seed, 50])) for level in _NOISE]
        orders = [np.random.default_rng([seed, 51, i]).permutation(n) for i in range(halves)]
        sums = np.zeros((len(lengths), len(_NOISE)))
        for total, length in zip(sums, lengths, strict=True):
            gram = (RBF(length) if nu is None else Matern(length, nu)).gram(data[0].x_train)
            for order in orders:
                factored = Factored(torch.from_numpy(gram[np.ix_(order, order)]))
                total += [_value(rho, factored, each.y_train[order], n // 2, 1e-6) for each in data]
        found = lengths[sums.argmin(axis=0)]
        moved, power = np.log10(found[-1] / found[0]), np.polyfit(np.log(_NOISE[1:]), np.log(found[1:]), 1)[0]
        setting = f"{name}, decades, noise 0 to 0.1"
        yield row("noise lengthens ρ's minimum", setting, seed, moved, ">", 0.0)
        yield row("ρ's minimum ~ noise^a", f"{name}, noise 1e-3 to 1e-1", seed, power)
        yield from (row("noise", name, seed, length, x=level) for level, length in zip(_NOISE, found, strict=True))
