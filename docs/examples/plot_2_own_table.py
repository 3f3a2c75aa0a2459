"""
Which λ for a table of my own?
==============================

ρ can choose the kernel's length scale, but not λ. Here are three ways to set λ for a CSV file, on five random splits
each. What a command does not say, kfx chooses for own data: by default λ is trained by a likelihood.
"""

import os

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import kfx

os.chdir(os.environ.get("KFX_RUNS", "."))
load_diabetes(as_frame=True).frame.to_csv("patients.csv", index=False)
own = [
    "dataset=table",
    "dataset.path=patients.csv",
    "dataset.target=target",
    "kernel=rbf",
    "kernel.ard=false",
    "optimizer.iterations=60",
]
by_rho = ["objective=rho", "regularization.value=1e-4"]
ways = {
    "ρ, λ = 1e-4": by_rho,
    "ρ, λ by validation": [*by_rho, "evaluation.regularization.value=validation"],
    "likelihood, λ trained": ["objective=nll", "regularization.selection=trained"],
}


def errors(sweep, kernel):
    """Test mean squared errors, one for each split."""
    tables = [run.evaluation.query(f"kernel == '{kernel}' and metric == 'mse'") for run in sweep.runs]
    return np.array([table["value"].item() for table in tables])


found = {}
for name, words in ways.items():
    sweep = kfx.sweep([*own, *words, "seed=range(5)", "figures=false"], progress=False)
    found[name] = errors(sweep, "trained")
    if name == "ρ, λ by validation":
        found["untrained, λ by validation"] = errors(sweep, "initial")
print({name: f"{each.mean():.0f} ± {each.std(ddof=1):.0f}" for name, each in found.items()})

# %%
# A thin line is one split, the points are means. On every split a chosen λ has a smaller error than λ = 1e-4, by a
# tenth on the mean. With a chosen λ the untrained kernel, whose length is the median distance of the data, predicts as
# well as the trained ones: here λ matters, and the length scale does not.

fixed, validated, untrained, trained = found.values()
assert (validated < fixed).all()
assert (trained < fixed).all()
assert 0.88 < validated.mean() / fixed.mean() < 0.92
assert untrained.mean() < 1.02 * min(validated.mean(), trained.mean())

figure, axes = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
places = np.arange(len(found))[::-1]
axes.plot(np.array(list(found.values())), places, color="#b9c1cc", linewidth=1)
axes.plot([each.mean() for each in found.values()], places, "o", color="#0072b2")
axes.set_yticks(places, list(found))
axes.set(xlabel="test mean squared error", ylim=(-0.5, len(found) - 0.5))
plt.show()
