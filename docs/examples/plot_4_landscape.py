"""
Does the length scale with the smallest ρ have the smallest error?
==================================================================

Not the smallest, but nearly, if the targets are centred. Then ρ is smallest at σ = 40, where the test error of a
Gaussian kernel is 3 % above its minimum, which is at σ = 8; between 5 and 33 the error is nearly the same, and ρ still
falls. With the targets as they are, whose mean is twice their deviation, ρ is smallest at σ = 1.1, where the test error
is 32 % above its minimum.
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
# ρ is the mean over 20 batches, with a band of one standard deviation for centred targets; dots are the minima.

mean, deviation, of_raw = centred.mean(axis=0), centred.std(axis=0), raw.mean(axis=0)
best, misled, least = mean.argmin(), of_raw.argmin(), np.argmin(errors)
assert (lengths[best].round(), lengths[misled].round(1), lengths[least].round()) == (40, 1.1, 8)
assert 1.03 < errors[best] / errors[least] < 1.04
assert 1.31 < errors[misled] / errors[least] < 1.33

figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
axes.fill_between(lengths, mean - deviation, mean + deviation, color="#0072b2", alpha=0.2, linewidth=0)
axes.plot(lengths, mean, color="#0072b2", label="ρ, centred targets")
axes.plot(lengths, of_raw, "--", color="#0072b2", label="ρ, raw targets")
axes.plot(lengths[[best, misled]], [mean[best], of_raw[misled]], "o", color="#0072b2")
axes.set(xlabel="σ", ylabel="ρ", xscale="log")
right = axes.twinx()
right.plot(lengths, errors, color="#d55e00", label="test error")
right.plot(lengths[least], errors[least], "o", color="#d55e00")
right.set(ylabel="test mean squared error")
figure.legend(loc="outside lower center", ncols=3, frameon=False)
plt.show()
