"""Why a flow on the three bumps falls for some seeds only: mean ρ as the line is stretched, for several λ.

python scripts/three_bumps_stretch.py [--output three_bumps_stretch.png] [--batches 200]

x + a sin x with a > 0 stretches the middle of [−π, π], where f varies most, and a < 0 contracts it. Where mean ρ rises
with a at a = 0, the mean flow contracts the middle, and a seed falls only if the noise of its batches carries it over
the hill. Kernel, points and batches as in `+experiment=khalid/three_bumps_prediction`.
"""

from __future__ import annotations

import argparse

import numpy as np

from kfx.data.synthetic import three_bumps
from kfx.kernels import RBF
from kfx.objectives import rho
from kfx.plots.style import COLOURS, FAINT, figure

BATCH_SIZE, SIGMA = 64, 4.0
LAMBDAS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)


def mean_rho(a, regularization, batches, x, y):
    gram = RBF(SIGMA).gram(x + a * np.sin(x))
    return np.mean([rho(gram[np.ix_(b, b)], y[b], BATCH_SIZE // 2, regularization, False)[0] for b in batches])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="three_bumps_stretch.png")
    parser.add_argument("--batches", type=int, default=200)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    data = three_bumps(80, 2, "grid", rng)
    batches = [rng.permutation(80)[:BATCH_SIZE] for _ in range(arguments.batches)]
    stretches = np.linspace(-0.9, 0.9, 37)
    middle = len(stretches) // 2
    picture, (axes,) = figure()
    print("λ        slope of mean ρ at a = 0   where mean ρ is largest   mean ρ at a = 0.8")
    for colour, value in zip(COLOURS, LAMBDAS, strict=False):
        means = [mean_rho(a, value, batches, data.x_train, data.y_train) for a in stretches]
        slope = (means[middle + 1] - means[middle - 1]) / (stretches[middle + 1] - stretches[middle - 1])
        largest = stretches[int(np.argmax(means))]
        at = mean_rho(0.8, value, batches, data.x_train, data.y_train)
        print(f"{value:<8g} {slope:<+26.4f} {largest:<+25.2f} {at:.3f}")
        axes.plot(stretches, means, color=colour, label=f"λ = {value:g}")
    axes.axvline(0, color=FAINT)
    axes.set(xlabel="a, in x + a sin x", ylabel="mean ρ over batches", title="three bumps · rbf, σ = 4")
    axes.legend()
    picture.savefig(arguments.output)
    print(f"picture  {arguments.output}")


if __name__ == "__main__":
    main()
