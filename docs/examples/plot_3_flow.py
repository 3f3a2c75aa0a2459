"""
Do classes cluster in a flow?
=============================

In a flow the points move along −∂ρ/∂X, layer after layer, until the kernel can predict from only few of them. As a
transformer, a flow also moves new points, so any classifier can follow it: here one that knows only the mean of each
class. Its test error falls from 9.5 to 1.6 %.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from kfx import KernelFlowTransformer

x, y = load_digits(return_X_y=True)
train, test, labels, unseen = train_test_split(x / 16, y, train_size=500, random_state=0)


def error_by_means(points, others):
    """Test error of the nearest class mean."""
    means = np.stack([points[labels == label].mean(axis=0) for label in range(10)])
    nearest = KNeighborsClassifier(1).fit(means, np.arange(10))
    return 1 - nearest.score(others, unseen)


layers, errors = [0, 50, 100, 200, 300], [error_by_means(train, test)]
for count in layers[1:]:
    flow = KernelFlowTransformer(
        {"name": "rbf", "sigma": 2.0}, optimizer={"iterations": count}, flow={"step_size": 0.02}
    ).fit(train, labels)
    errors.append(error_by_means(flow.transform(train), flow.transform(test)))
print(dict(zip(layers, np.round(errors, 3).tolist(), strict=True)))
assert errors[0] > 0.09
assert errors[-1] < 0.02

# %%
# Left: test error. Middle and right: test points in the plane of their largest variance, before and after 300 layers.

figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
axes[0].plot(layers, errors, "o-")
axes[0].set(xlabel="layers", ylabel="test error of the nearest class mean", ylim=(0, None))
for panel, points, name in zip(
    axes[1:], (test, flow.transform(test)), ("as they come", "after 300 layers"), strict=True
):
    plane = PCA(2).fit_transform(points)
    shown = panel.scatter(*plane.T, c=unseen, cmap="tab10", s=8)
    panel.set(title=name, xticks=[], yticks=[])
figure.colorbar(shown, ax=axes[2], ticks=range(10), label="digit")
plt.show()
