"""
Can GPyTorch train a convolutional kernel?
==========================================

Exact Gaussian-process regression of a digit's value from its image in GPyTorch, trained by the marginal likelihood,
with GPyTorch's Gaussian kernel and with kfx's CNNGP, whose gradients are exact. On so few images the Gaussian
kernel has the larger likelihood and the smaller error: GPyTorch can use the CNNGP, but it is not better here.
"""

import warnings

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # from GPyTorch's own imports
    import gpytorch

from kfx.gpytorch import KfxKernel
from kfx.kernels import CNNGP, Conv2d, ReLU, Sequential
from kfx.torch import rho_loss

torch.manual_seed(0)
digits = load_digits()
x, y = torch.as_tensor(digits.data / 16), torch.as_tensor(digits.target - 4.5)
train, test = slice(0, 200), slice(1000, 1300)


class Model(gpytorch.models.ExactGP):
    def __init__(self, kernel, likelihood):
        super().__init__(x[train], y[train], likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, points):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(points), self.covar_module(points))


convolutional = CNNGP(Sequential(Conv2d(3, padding="same"), ReLU(), Conv2d(8, padding=0)), 1.0, 0.1)
kernels = {
    "Gaussian (GPyTorch)": gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()),
    "CNNGP (kfx)": KfxKernel(convolutional, image_shape=(1, 8, 8)),
}
predictions, likelihoods = {}, []
for name, kernel in kernels.items():
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(kernel, likelihood).double()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with gpytorch.settings.fast_computations(False, False, False):
        for _ in range(200):
            optimizer.zero_grad()
            loss = -marginal(model(x[train]), y[train])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            found = likelihood(model(x[test]))
            predictions[name] = found.mean, found.stddev
    likelihoods.append(-loss.item())
    print(f"{name}: log marginal likelihood a point {likelihoods[-1]:.3f}")
assert likelihoods[0] > likelihoods[1] + 0.2

# %%
# The same Gaussian kernel trained by ρ: GPyTorch's lazy matrix is evaluated, and the noise is not learned. Its error is
# the largest of the three.

kernel = gpytorch.kernels.RBFKernel().double()
optimizer = torch.optim.Adam(kernel.parameters(), lr=0.1)
for _ in range(200):
    optimizer.zero_grad()
    batch = torch.randperm(200)[:100]
    rho_loss(kernel(x[batch]), y[batch], sample_size=50).backward()
    optimizer.step()
with torch.no_grad():
    inner, cross = kernel(x[train]).to_dense() + 1e-2 * torch.eye(200), kernel(x[test], x[train]).to_dense()
    error = (cross @ torch.linalg.solve(inner, y[train]) - y[test]).square().mean().sqrt()
print(f"by ρ: length scale {kernel.lengthscale.item():.2f}, RMSE {error:.2f}")

# %%
# Predictions against the digits, with one standard deviation.

errors = {name: float((mean - y[test]).square().mean().sqrt()) for name, (mean, _) in predictions.items()}
assert errors["Gaussian (GPyTorch)"] < errors["CNNGP (kfx)"] < error

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained", sharey=True)
for panel, (name, (mean, deviation)) in zip(axes, predictions.items(), strict=True):
    jitter = 0.3 * torch.linspace(-1, 1, len(mean))
    panel.errorbar(y[test] + 4.5 + jitter, mean + 4.5, yerr=deviation, fmt=".", markersize=3, elinewidth=0.4)
    panel.plot([0, 9], [0, 9], color="#2b2d42", linewidth=1)
    panel.set(title=f"{name}: RMSE {errors[name]:.2f}", xlabel="digit")
axes[0].set_ylabel("predicted")
plt.show()
