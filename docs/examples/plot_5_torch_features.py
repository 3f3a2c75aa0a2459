"""
Can any torch module be trained by ρ?
=====================================

The loss of a small network is ρ of a Gaussian kernel on its features, without a classification head or cross-entropy.
Then ten points, one of each class, classify the others by kernel ridge regression.
In 200 iterations their test error falls from about one half to one sixth.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from kfx.torch import rho_loss

torch.manual_seed(0)
digits = load_digits()
images = torch.as_tensor(digits.images[:, None] / 16, dtype=torch.float32)
labels, targets = torch.as_tensor(digits.target), torch.eye(10)[digits.target]
train, test = torch.arange(1200), torch.arange(1200, 1797)
network = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(128, 20),
)


def gram(a, b):
    """A Gaussian kernel on the features; its length scale follows from their mean squared distance."""
    distances = torch.cdist(network(a), network(b)).square()
    return torch.exp(-4 * distances / distances.mean())


def error_with(count):
    """Test error with `count` interpolation points of each class."""
    chosen = torch.cat([train[labels[train] == label][:count] for label in range(10)])
    with torch.no_grad():
        inner = gram(images[chosen], images[chosen]) + 1e-3 * torch.eye(len(chosen))
        predicted = gram(images[test], images[chosen]) @ torch.linalg.solve(inner, targets[chosen])
    return float((predicted.argmax(dim=1) != labels[test]).float().mean())


optimizer, rhos, errors = torch.optim.Adam(network.parameters(), lr=3e-3), [], {1: [], 20: []}
for iteration in range(201):
    if iteration % 20 == 0:
        for count, found in errors.items():
            found.append(error_with(count))
    batch = train[torch.randperm(1200)[:200]]
    loss = rho_loss(gram(images[batch], images[batch]), targets[batch], sample_size=100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rhos.append(loss.item())
assert errors[1][0] > 0.45
assert errors[1][-1] < 0.2
assert errors[20][-1] < 0.07

# %%
# The classes cluster, so that few points of each class predict the others.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
axes[0].plot(rhos)
axes[0].set(xlabel="iteration", ylabel="ρ of a batch")
for count, found in errors.items():
    axes[1].plot(np.arange(0, 201, 20), found, "o-", label=f"{10 * count} interpolation points")
axes[1].set(xlabel="iteration", ylabel="test error", yscale="log")
axes[1].legend(frameon=False)
plt.show()
