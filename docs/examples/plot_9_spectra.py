"""
Spectra: which derivative, and beside partial least squares
===========================================================

Absorbances along a hundred channels tell the concentration of a substance by one narrow peak, under a baseline that
drifts and light that scatters more or less. Chemometrics takes derivatives (Savitzky and Golay), or scales each
spectrum (SNV, MSC), before partial least squares. kfx sees that the features are a spectrum, and lets folds of the
training points choose.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cross_decomposition import PLSRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from kfx import KernelFlowRegressor
from kfx.data.steps import fitted

rng, channels = np.random.default_rng(0), np.linspace(0, 1, 100)
concentration, scatter = rng.uniform(size=200), rng.uniform(0.7, 1.3, size=200)


def bump(centre, width):
    return np.exp(-(((channels - centre) / width) ** 2))


peak, others = bump(0.45, 0.04), np.stack([bump(0.2, 0.2), bump(0.5, 0.3), bump(0.8, 0.25)])
absorbed = 1 - np.exp(-2 * concentration[:, None] * peak)  # saturates: not linear in the concentration
baseline = rng.normal(size=(200, 3)) @ others + rng.normal(size=(200, 1))
spectra = scatter[:, None] * (absorbed + baseline) + 0.002 * rng.normal(size=(200, 100))
train, test = slice(0, 120), slice(120, None)

# %%
# The spectra, and what a second derivative leaves of them
# --------------------------------------------------------

second = fitted(spectra, ["snv", "second_derivative"])[0]
figure, panels = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for panel, rows, name in zip(panels, (spectra, second), ("as measured", "snv, second_derivative"), strict=True):
    for row, share in zip(rows[:40], concentration, strict=False):
        panel.plot(channels, row, color=plt.cm.viridis(share), linewidth=0.8)
    panel.set(title=name, xlabel="channel")
plt.show()

# %%
# kfx beside partial least squares
# --------------------------------
# Partial least squares gets its number of components by five folds, and for a fair comparison the same steps to choose
# from.

STEPS = [[], ["snv"], ["derivative"], ["second_derivative"], ["snv", "second_derivative"]]


def prepared(x, steps):
    return fitted(x, steps)[0]


def error(model):
    left = model.predict(spectra[test]).ravel() - concentration[test]
    return float(np.sqrt(np.mean(left**2)))


def partial_least_squares(choices):
    grid = {
        "functiontransformer__kw_args": [{"steps": steps} for steps in choices],
        "plsregression__n_components": range(1, 16),
    }
    return GridSearchCV(make_pipeline(FunctionTransformer(prepared), PLSRegression()), grid, cv=5)


models = {
    "PLS, as measured": partial_least_squares([[]]),
    "PLS, steps chosen": partial_least_squares(STEPS),
    "kfx, normalized alone": KernelFlowRegressor(scale=["normalize"]),
    "kfx": KernelFlowRegressor(),
}
errors = {name: error(model.fit(spectra[train], concentration[train])) for name, model in models.items()}
for name, value in errors.items():
    print(f"{name:32} RMSE {value:.4f}")
print(models["kfx"].remarks_[0])

# %%
# The errors as a picture
# -----------------------

figure, axes = plt.subplots(figsize=(6, 2.2), layout="constrained")
axes.barh(list(errors)[::-1], list(errors.values())[::-1], color=["#d55e00", "#56b4e9", "#0072b2", "#0072b2"])
axes.set_xlabel("RMSE of the concentration on 80 new spectra")
plt.show()
