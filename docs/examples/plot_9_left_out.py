"""
Which criterion forgives outliers?
==================================

A Gaussian process in GPyTorch, with Gaussian noise, learns a sine from 50 points, of which about one in seven has eight
times the noise: the model is wrong. It is trained by the marginal likelihood, by the density of points left out, and
by their CRPS, which is linear in large errors. By the CRPS the bands are narrower and the mean is better, but outliers
are then less likely than they are: each criterion is best by its own measure. Without outliers the model is right, and
nothing is gained by leaving its likelihood.
"""

import warnings

import matplotlib.pyplot as plt
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # from GPyTorch's own imports
    import gpytorch

from kfx.gpytorch import Objective

grid = torch.linspace(0, 1, 400, dtype=torch.float64)[:, None]


def sine(x):
    return torch.sin(8 * x[:, 0])


def draw(seed, share, x=None):
    """Points, 50 unless given, and their targets, a share of which has eight times the noise."""
    own = torch.Generator().manual_seed(seed)
    x = torch.rand(50, 1, generator=own).double() if x is None else x
    noise = 0.1 * torch.randn(len(x), generator=own).double()
    return x, sine(x) + torch.where(torch.rand(len(x), generator=own) < share, 8 * noise, noise)


# %%
# Train a model by any criterion
# ------------------------------
# `Objective` stands where `gpytorch.mlls.ExactMarginalLogLikelihood` would: `nll` is the same.


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def predict(x, y, criterion):
    """Predictions of new targets on the grid by a model trained by this criterion."""
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(x, y, likelihood).double()
    likelihood.noise, model.covar_module.base_kernel.lengthscale = 0.1, 0.2
    mll = Objective(likelihood, model, criterion)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        found = likelihood(model(grid))
        return found.mean, found.stddev


# %%
# Ten draws with outliers, and ten without
# ----------------------------------------
# New targets are drawn as the old ones, outliers included, and judge the predictions by both scores.

criteria = {"nll": "likelihood", "loo_likelihood": "density of points left out", "crps": "CRPS of points left out"}
standard, scores, first = torch.distributions.Normal(0.0, 1.0), {}, {}


def judge(mean, deviation, seed, share):
    """RMSE against the truth, then minus log density and CRPS of new targets."""
    _, noisy = draw(1000 + seed, share, grid.repeat(10, 1))
    mean, deviation = mean.repeat(10), deviation.repeat(10)
    z = (noisy - mean) / deviation
    crps = deviation * (z * (2 * standard.cdf(z) - 1) + 2 * standard.log_prob(z).exp() - torch.pi**-0.5)
    rmse = (mean - sine(grid.repeat(10, 1))).square().mean().sqrt()
    return torch.stack([rmse, (deviation.log() - standard.log_prob(z)).mean(), crps.mean()])


for share in (0.15, 0.0):
    for criterion in criteria:
        found = [predict(*draw(seed, share), criterion) for seed in range(10)]
        first[share, criterion] = found[0]
        scores[share, criterion] = torch.stack([judge(*each, seed, share) for seed, each in enumerate(found)])
        rmse, density, crps = scores[share, criterion].mean(dim=0)
        print(f"{share:.0%} outliers, by {criterion}: RMSE {rmse:.3f}, -log density {density:.3f}, CRPS {crps:.4f}")
by_likelihood, by_crps = scores[0.15, "nll"], scores[0.15, "crps"]
wins = (by_crps < by_likelihood).sum(dim=0).tolist()
print(f"by CRPS better than by likelihood in {wins[0]}, {wins[1]} and {wins[2]} of 10 draws with outliers")
assert wins[0] >= 7
assert wins[1] <= 1
assert wins[2] >= 7
assert (scores[0.0, "nll"].mean(dim=0) < scores[0.0, "crps"].mean(dim=0)).all()

# %%
# The first draw, and the scores of all ten, each draw a line.

colours = dict(zip(criteria, ("#0072b2", "#7a8596", "#d55e00"), strict=True))
figure, (left, *others) = plt.subplots(1, 3, figsize=(11, 4), layout="constrained", width_ratios=(2, 1, 1))
left.plot(*draw(0, 0.15), ".", color="#2b2d42", label="targets")
left.plot(grid, sine(grid), color="#b9c1cc", linewidth=4, label="truth")
for criterion in ("nll", "crps"):
    mean, deviation = first[0.15, criterion]
    left.plot(grid, mean, color=colours[criterion], label=f"by {criteria[criterion]}, 95 %")
    band = mean - 1.96 * deviation, mean + 1.96 * deviation
    left.fill_between(grid[:, 0], *band, color=colours[criterion], alpha=0.2, linewidth=0)
left.set(xlabel="x", ylabel="y", ylim=(-3.2, 2))
left.legend(frameon=False, loc="lower left", ncols=2, fontsize=8)
for which, panel, title in zip((0, 1), others, ("RMSE of the mean", "−log density of new targets"), strict=True):
    found = torch.stack([scores[0.15, criterion][:, which] for criterion in criteria])
    panel.plot(found, color="#b9c1cc", linewidth=0.8)
    for place, (criterion, each) in enumerate(zip(criteria, found, strict=True)):
        panel.plot(place, each.mean(), "o", color=colours[criterion])
    panel.set_xticks(range(3), ("likelihood", "density\nleft out", "CRPS\nleft out"))
    panel.set(title=title, xlim=(-0.4, 2.4), xlabel="trained by (dots: means)")
others[0].set_ylim(0)
plt.show()
