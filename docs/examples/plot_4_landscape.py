"""
Does the length scale with the smallest ρ have the smallest error?
==================================================================

The picture shows ρ against the length scale of a Gaussian kernel (mean and standard deviation over batches), and the
test error. The two minima are near each other, but not the same. If the mean of the targets is far from 0, ρ misleads
(dashed line); so centre the targets.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

from kfx import KernelFlowRegressor
from kfx.kernels import RBF
from kfx.objectives import rho

x, y = load_diabetes(return_X_y=True)
x = x / x.std(axis=0)
lengths = np.geomspace(0.5, 60, 25)
rng = np.random.default_rng(0)
batches = [rng.choice(300, 100, replace=False) for _ in range(20)]


def over_lengths(targets):
    """ρ for each length scale, a row for each batch."""
    grams = [[RBF(length).gram(x[batch]) for length in lengths] for batch in batches]
    return np.array(
        [[rho(g, targets[b], 50, 0.1, cotangent=False)[0] for g in row] for b, row in zip(batches, grams, strict=True)]
    )


centred, raw = over_lengths(y - y.mean()), over_lengths(y)
fixed = {"optimizer": {"name": "none", "iterations": 1}, "regularization": {"value": 0.1, "scale": "absolute"}}
errors = []
for length in lengths:
    model = KernelFlowRegressor(RBF(length), **fixed).fit(x[:300], y[:300] - y.mean())
    errors.append(np.mean((model.predict(x[300:]) + y.mean() - y[300:]) ** 2))

# %%
# The band is one standard deviation over batches.

figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
mean, deviation = centred.mean(axis=0), centred.std(axis=0)
axes.fill_between(lengths, mean - deviation, mean + deviation, color="#0072b2", alpha=0.2, linewidth=0)
axes.plot(lengths, mean, color="#0072b2", label="ρ, centred targets")
axes.plot(lengths, raw.mean(axis=0), "--", color="#0072b2", label="ρ, raw targets")
axes.set(xlabel="σ", ylabel="ρ", xscale="log")
right = axes.twinx()
right.plot(lengths, errors, color="#d55e00", label="test error")
right.set(ylabel="test mean squared error")
figure.legend(loc="outside lower center", ncols=3, frameon=False)
plt.show()
