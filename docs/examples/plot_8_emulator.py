"""
Which input matters when?
=========================

An emulator learns the answer of a damped oscillator to a kick, 200 values, from 80 runs with other frequencies,
dampings and kicks. Each principal component of the answers has a kernel of its own.
"""

# %%
# Fit on 80 runs
# --------------
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import qmc

import kfx

RANGES = {"frequency": (1.0, 1.5), "damping": (0.05, 0.3), "kick": (0.5, 2.0)}
time = np.linspace(0.05, 15, 200)


def oscillator(inputs):
    frequency, damping, kick = inputs.T[:, :, None]
    return kick / frequency * np.exp(-damping * time) * np.sin(frequency * time)


low, high = np.array(list(RANGES.values())).T
x = qmc.scale(qmc.LatinHypercube(3, rng=0).random(80), low, high)
settings = {"reduce": "pca", "components": 0.9999}
emulator = kfx.KernelFlowRegressor("rbf", outputs=settings).fit((x - low) / (high - low), oscillator(x))
print(f"{len(emulator.components_)} components")

# %%
# Predict runs that it has not seen
# ---------------------------------
# The bands are meant to hold 95 % of the values.
new = qmc.scale(qmc.LatinHypercube(3, rng=1).random(200), low, high)
mean, deviation = emulator.predict((new - low) / (high - low), return_std=True)
truth = oscillator(new)
inside = np.mean(np.abs(truth - mean) < 1.96 * deviation)
print(f"{100 * inside:.1f} % of all values are in the 95 % bands")
assert 0.92 < inside < 0.98

# %%
# The share of the variance that each input explains
# --------------------------------------------------
# Total Sobol indices of each output: at first the kick decides, later the frequency, by the phase.
total = kfx.sensitivities(emulator, [(0, 1)] * 3)[1]
assert total[0].argmax() == 2
assert total[0, 2] > 0.95
assert (total[time > 5].argmax(axis=1) == 0).mean() > 0.9

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for i, colour in zip((0, 1), ("#0072b2", "#d55e00"), strict=True):
    left.plot(time, truth[i], color="#b9c1cc", linewidth=4, label=None if i else "simulated")
    left.plot(time, mean[i], color=colour, linewidth=1.2, label=None if i else "emulated, 95 %")
    band = mean[i] - 1.96 * deviation[i], mean[i] + 1.96 * deviation[i]
    left.fill_between(time, *band, color=colour, alpha=0.3, linewidth=0)
left.set(xlabel="time", ylabel="position")
left.legend(frameon=False)
for name, share, colour in zip(RANGES, total.T, ("#0072b2", "#d55e00", "#009e73"), strict=True):
    right.plot(time, share, color=colour, label=name)
right.set(xlabel="time", ylabel="total Sobol index", ylim=(0, 1.3))
right.legend(frameon=False, ncols=3, loc="upper center")
plt.show()
