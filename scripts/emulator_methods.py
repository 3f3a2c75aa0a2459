"""The emulators that `compare_emulators.py` compares: kfx with several settings, and other programs' beside it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kfx import KernelFlowRegressor

Emulator = Callable[[np.ndarray, np.ndarray], tuple[Callable, np.ndarray | None]]
"""Maps inputs, (n, inputs), and standardized outputs, (n, outputs), to a function that predicts a mean and a deviation,
(m, outputs) each, and to the length of each input, if the emulator has one output and lengths."""
COMPONENTS = 10
RESTARTS = 2


def kfx(**settings: object) -> Emulator:
    def fit(x: np.ndarray, y: np.ndarray) -> tuple[Callable, np.ndarray | None]:
        outputs = {"reduce": "pca", "components": COMPONENTS} if y.shape[1] > COMPONENTS else None
        model = KernelFlowRegressor(scale=None, outputs=outputs, device={"name": "cpu", "threads": 1}, **settings).fit(
            x, y
        )
        lengths = model.kernel_.parameters.get("lengths") if y.shape[1] == 1 else None
        return lambda at: model.predict(at, return_std=True), lengths

    return fit


def gaussian_process(restarts: int = 0) -> Emulator:
    """scikit-learn's, with a Gaussian kernel with a length for each input, one for each component.

    restarts: of L-BFGS, from random parameters; the best likelihood is taken.
    """

    def fit(x: np.ndarray, y: np.ndarray) -> tuple[Callable, np.ndarray | None]:
        from sklearn.base import clone
        from sklearn.decomposition import PCA
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

        reduction = PCA(COMPONENTS).fit(y) if y.shape[1] > COMPONENTS else None
        scores = y if reduction is None else reduction.transform(y)
        start = ConstantKernel() * RBF(3 * np.ones(x.shape[1]), (1e-2, 1e5)) + WhiteKernel(1e-6, (1e-12, 1.0))
        model = GaussianProcessRegressor(start, n_restarts_optimizer=restarts, normalize_y=True, random_state=0)
        models = [clone(model).fit(x, column) for column in scores.T]

        def predict(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            mean, spread = (
                np.stack(each, axis=1) for each in zip(*(m.predict(at, return_std=True) for m in models), strict=True)
            )
            if reduction is None:
                return mean, spread
            return reduction.inverse_transform(mean), np.sqrt(spread**2 @ reduction.components_**2)

        return predict, models[0].kernel_.k1.k2.length_scale if y.shape[1] == 1 else None

    return fit


def gpytorch_independent(x: np.ndarray, y: np.ndarray) -> tuple[Callable, np.ndarray | None]:
    """GPyTorch's exact Gaussian processes, one for each component, as one batch; 300 steps of Adam."""
    import gpytorch
    from sklearn.decomposition import PCA

    reduction = PCA(COMPONENTS, whiten=True).fit(y) if y.shape[1] > COMPONENTS else None
    points, scores = torch.tensor(x), torch.tensor(y if reduction is None else reduction.transform(y)).T
    batch = torch.Size([len(scores)])

    class Independent(gpytorch.models.ExactGP):
        def __init__(self, likelihood: gpytorch.likelihoods.Likelihood) -> None:
            super().__init__(points, scores, likelihood)
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
            inner = gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[1], batch_shape=batch)
            self.covar_module = gpytorch.kernels.ScaleKernel(inner, batch_shape=batch)

        def forward(self, at: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(at), self.covar_module(at))

    noise = gpytorch.constraints.GreaterThan(1e-8)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=noise, batch_shape=batch).double()
    model = Independent(likelihood).double()
    model.covar_module.base_kernel.lengthscale = 3.0
    likelihood.noise = 1e-4
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(300):
        optimizer.zero_grad()
        (-evidence(model(points), scores).sum()).backward()
        optimizer.step()
    model.eval()
    likelihood.eval()

    def predict(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            found = likelihood(model(torch.tensor(at)))
        mean, spread = found.mean.T.numpy(), found.stddev.T.numpy()
        if reduction is None:
            return mean, spread
        scale = np.sqrt(reduction.explained_variance_)
        return reduction.inverse_transform(mean), np.sqrt((spread * scale) ** 2 @ reduction.components_**2)

    lengths = model.covar_module.base_kernel.lengthscale.detach().numpy()[0, 0]
    return predict, lengths if y.shape[1] == 1 else None


def network(x: np.ndarray, y: np.ndarray) -> tuple[Callable, np.ndarray | None]:
    """Three layers of 128 units, 2000 steps of Adam; the deviation is that of a fifth of the points left out."""
    torch.manual_seed(0)
    held = len(x) // 5
    layers = [torch.nn.Linear(x.shape[1], 128), torch.nn.SiLU(), torch.nn.Linear(128, 128), torch.nn.SiLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(128, y.shape[1]))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2000)
    points, targets = torch.tensor(x[held:], dtype=torch.float32), torch.tensor(y[held:], dtype=torch.float32)
    for _ in range(2000):
        optimizer.zero_grad()
        (model(points) - targets).square().mean().backward()
        optimizer.step()
        schedule.step()

    def mean(at: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor(at, dtype=torch.float32)).numpy().astype(float)

    spread = np.sqrt(np.mean((mean(x[:held]) - y[:held]) ** 2, axis=0))
    return lambda at: (mean(at), np.broadcast_to(spread, (len(at), y.shape[1]))), None


THEIRS = {"objective": {"name": "loo", "form": "held_out"}, "regularization": "trained",
          "sampler": {"name": "centres", "batch_size": 64},
          "optimizer": {"name": "amsgrad", "iterations": 700, "learning_rate": 0.02, "fall_back": False}}  # fmt: skip
UNTRAINED = {"optimizer": {"name": "none", "iterations": 1}}
BY_LIKELIHOOD, BESIDE = "kfx, nll by L-BFGS", "scikit-learn GPR"
RESTARTED = f"{BESIDE}, {RESTARTS} restarts"
SMALL = {"selection": "trained", "value": 1e-6}
METHODS: dict[str, Emulator] = {
    "kfx": kfx(kernel="rbf"),
    "kfx, Matérn 5/2": kfx(kernel="matern"),
    "kfx, untrained": kfx(kernel={"name": "rbf", "ard": False, "initial": "median_distance"}, **UNTRAINED),
    "kfx, by rho": kfx(kernel="rbf", objective="rho"),
    "kfx, by nll": kfx(kernel="rbf", objective="nll"),
    BY_LIKELIHOOD: kfx(kernel="rbf", objective="nll", regularization=SMALL, optimizer={"name": "lbfgs"}),
    "kfx, by loo": kfx(kernel="rbf", objective="loo"),
    "kfx, as KernelFlows.jl": kfx(kernel="emulator", **THEIRS),
    BESIDE: gaussian_process(),
    RESTARTED: gaussian_process(RESTARTS),
    "GPyTorch": gpytorch_independent,
    "network": network,
}
