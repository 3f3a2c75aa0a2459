"""
Which λ for a table of my own?
==============================

ρ can choose the kernel's length scale, but not λ. Here are three ways to set λ for a CSV file, with five seeds each.
What a command does not say, kfx chooses for own data: by default λ is trained by a likelihood.
"""

import os

import matplotlib.pyplot as plt
from sklearn.datasets import load_diabetes

import kfx

os.chdir(os.environ.get("KFX_RUNS", "."))
load_diabetes(as_frame=True).frame.to_csv("patients.csv", index=False)
own = ["dataset=table", "dataset.path=patients.csv", "dataset.target=target", "kernel=rbf", "kernel.ard=false"]
by_rho = ["objective=rho", "regularization.value=1e-4"]
ways = {
    "λ = 1e-4, ρ": by_rho,
    "λ by validation, ρ": [*by_rho, "evaluation.regularization.value=validation"],
    "λ trained, likelihood": ["objective=nll", "regularization.selection=trained"],
}
tables = {}
for name, words in ways.items():
    sweep = kfx.sweep([*own, *words, "seed=range(5)", "optimizer.iterations=60", "figures=false"], progress=False)
    tables[name] = kfx.compare(sweep, by="kernel", metric="mse").iloc[0]

# %%
# Half of the variance of these targets is noise: a λ that accounts for it matters more than the length scale.

figure, axes = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
places = range(len(tables))[::-1]
axes.errorbar(
    [t["mse"] for t in tables.values()], places, xerr=[t["mse_sd"] for t in tables.values()], fmt="o", capsize=3
)
axes.set_yticks(places, list(tables))
axes.set(xlabel="test mean squared error (mean ± sd over five seeds)", ylim=(-0.5, len(tables) - 0.5))
plt.show()
