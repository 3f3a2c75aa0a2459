"""Compare convolution kernels with and without pooling on small parts of CIFAR-10, as Arora et al. 2020, Table 2.

python scripts/compare_pooled.py [--kernels Myrtle-5] [--pool 160] [--test 500]
python scripts/compare_pooled.py --page

One class-balanced pool of training images and the first test images: each kernel's matrices on them are computed once,
by blocks of rows in runs/images/, and a second call goes on. All draws are submatrices. N training images, N/10 of each
class, are drawn twenty times; λ is 0, as published, and beside it chosen by leave-one-out errors of the draw alone. The
images are read from KFX_DATA_DIR/cifar10.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from kfx.data.dataset import preprocess
from kfx.data.images import cifar10
from kfx.kernels import CNNGP, CNTK, Conv2d, Dense, ReLU, Sequential
from kfx.kernels.base import Kernel
from kfx.kernels.cnngp.architectures import architecture

FOLDER = Path(__file__).parent.parent / "runs" / "images"
IMAGE = (32, 32)
DRAWS = 20
RIDGES = (0.0, *(10.0**k for k in range(-6, 1)))
PUBLISHED = {10: 15.33, 20: 18.79, 40: 21.34, 80: 25.48, 160: 30.48, 320: 36.57, 640: 42.63, 1280: 48.86}


def _flattened(depth: int) -> Sequential:
    """The layers of cntk_gap with a dense layer on all positions in place of the mean."""
    layers = [Conv2d(3, padding="same"), ReLU()]
    layers += [Conv2d(3, padding="same", weight_multiplier=2.0), ReLU()] * (depth - 2)
    return Sequential(*layers, Dense(2.0))


KERNELS: dict[str, Kernel] = {
    "CNTK-14, pooled": CNTK(architecture("cntk_gap", IMAGE), 1.0, 0.0, fixed_layers="first_and_last"),
    "Myrtle-5": CNNGP(architecture("myrtle5", IMAGE), 1.0, 0.0),
    "CNNGP-14, flattened": CNNGP(_flattened(14), 1.0, 0.0),
}


def images(pool: int, test: int) -> tuple[torch.Tensor, np.ndarray, torch.Tensor, np.ndarray]:
    """Training images, as many of each class, and test images, with their classes; channels standardized."""
    data = cifar10(None, test, [1], None, np.random.default_rng(0))
    classes = data.y_train.argmax(axis=1)
    at = np.sort(np.concatenate([np.flatnonzero(classes == c)[: pool // 10] for c in range(10)]))
    data = preprocess(replace(data, x_train=data.x_train[at], y_train=data.y_train[at]), ["normalize_channels"])
    x, z = (torch.as_tensor(each, dtype=torch.float32) for each in (data.x_train, data.x_test))
    return x, classes[at], z, data.y_test.argmax(axis=1)


def matrices(name: str, x: torch.Tensor, z: torch.Tensor, rows: int = 20) -> tuple[np.ndarray, np.ndarray, float]:
    """Return K(x, x), K(z, x) and the seconds that they took, block of rows by block of rows on disk."""
    kernel, folder = KERNELS[name], FOLDER / "matrices" / name.replace(", ", "-").replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    found, seconds = {}, 0.0
    for kind, points in (("train", x), ("test", z)):
        blocks = []
        for start in range(0, len(points), rows):
            # of a symmetric matrix, the blocks on and above the diagonal
            columns = x[start:] if kind == "train" else x
            path = folder / f"{kind}-{len(x)}-{start}.npz"
            if not path.exists():
                began = time.perf_counter()
                block = np.asarray(kernel.gram(points[start : start + rows], columns), float)
                np.savez(path.with_suffix(".tmp.npz"), block=block, seconds=time.perf_counter() - began)
                path.with_suffix(".tmp.npz").replace(path)
                print(f"{name} {kind} {start + rows}/{len(points)}", file=sys.stderr, flush=True)
            stored = np.load(path)
            seconds += float(stored["seconds"])
            blocks.append(stored["block"])
        if kind == "test":
            found[kind] = np.concatenate(blocks)
            continue
        whole = np.zeros((len(x), len(x)))
        for start, block in zip(range(0, len(x), rows), blocks, strict=True):
            whole[start : start + rows, start:] = block
            whole[start:, start : start + rows] = block.T
        found[kind] = whole
    return found["train"], found["test"], seconds


def accuracy(k: np.ndarray, k_test: np.ndarray, classes: np.ndarray, test: np.ndarray) -> tuple[float, float, float]:
    """Return the accuracy with λ = 0, that with λ by leave-one-out errors, and this λ, in units of tr K / N."""
    y = np.where(np.arange(10) == classes[:, None], 0.9, -0.1)
    values, vectors = np.linalg.eigh(k)
    scale, best = np.trace(k) / len(k), (np.inf, 0.0)
    right = {}
    for ridge in RIDGES:
        inverse = (vectors / (values + max(ridge, 1e-12) * scale)) @ vectors.T
        weights = inverse @ y
        right[ridge] = float(((k_test @ weights).argmax(axis=1) == test).mean())
        left_out = y - weights / np.diagonal(inverse)[:, None]
        best = min(best, (float(((left_out - y) ** 2).mean()), ridge))
    return right[0.0], right[best[1]], best[1]


def compare(names: list[str], pool: int, test: int) -> None:
    """Compute what is missing, and write the rows of these kernels."""
    x, classes, z, of_test = images(pool, test)
    rows = []
    for name in names:
        k, k_test, seconds = matrices(name, x, z)
        pairs = len(x) * (len(x) + 20) / 2 + len(x) * len(z)
        for n in (n for n in PUBLISHED if n <= len(x)):
            found = []
            for draw in range(DRAWS if n < len(x) else 1):
                rng = np.random.default_rng([n, draw])
                at = np.concatenate(
                    [rng.choice(np.flatnonzero(classes == c), n // 10, replace=False) for c in range(10)]
                )
                found.append(accuracy(k[np.ix_(at, at)], k_test[:, at], classes[at], of_test))
            zero, by_loo, _ = np.array(found).T
            # the draws differ, the test images are the same: both have their share in the standard error
            error = np.sqrt(zero.var(ddof=len(found) > 1) / len(found) + zero.mean() * (1 - zero.mean()) / len(z))
            rows.append((name, n, len(found), zero.mean(), error, by_loo.mean(), len(x), len(z), seconds / pairs * 1e3))
    columns = ["kernel", "n_train", "draws", "accuracy", "standard_error", "accuracy_loo", "pool", "n_test",
               "ms_a_pair"]  # fmt: skip
    table = pd.DataFrame(rows, columns=columns).round(5)
    path = FOLDER / "cifar10.csv"
    if path.exists():
        before = pd.read_csv(path)
        table = pd.concat([before[~before["kernel"].isin(names)], table], ignore_index=True)
    table.to_csv(path, index=False)
    print(table.to_string(index=False))


def table() -> str:
    """The recorded accuracies, a row for each number of training images."""
    found = pd.read_csv(FOLDER / "cifar10.csv")
    names = list(dict.fromkeys(found["kernel"]))
    lines = [
        "| training images | CNTK-14, as printed | " + " | ".join(names) + " |",
        "|---:|---:|" + "---:|" * len(names),
    ]
    for n, own in found.groupby("n_train"):
        cells = []
        for name in names:
            row = own[own["kernel"] == name]
            cells.append(
                "-"
                if row.empty
                else f"{100 * row.accuracy.iloc[0]:.1f} ± {100 * row.standard_error.iloc[0]:.1f} "
                f"({100 * row.accuracy_loo.iloc[0]:.1f})"
            )
        lines.append(f"| {n} | {PUBLISHED[n]:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw() -> None:
    """Draw accuracy against the number of training images into runs/images/accuracy.png."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = pd.read_csv(FOLDER / "cifar10.csv")
    picture = Figure(figsize=(6.4, 3.8), dpi=130, layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    shown = {n: value for n, value in PUBLISHED.items() if n <= found["n_train"].max()}
    axes.plot(list(shown), list(shown.values()), "k--", marker="o", mfc="white", label="CNTK-14, as printed")
    for colour, (name, own) in zip(
        ("#d55e00", "#0072b2", "#009e73"), found.groupby("kernel", sort=False), strict=False
    ):
        axes.errorbar(own["n_train"], 100 * own["accuracy"], 100 * own["standard_error"], color=colour, marker="o",
                      capsize=3, label=name)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(shown), [str(n) for n in shown])
    axes.set_xlabel("training images of CIFAR-10")
    axes.set_ylabel("accuracy, %")
    axes.grid(color="#d5d9e0")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    picture.savefig(FOLDER / "accuracy.png")


def page() -> str:
    """The page docs/images.md, from the recorded rows alone."""
    return (FOLDER / "page.md").read_text().replace("{accuracies}", table())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default="", help="names, separated by semicolons (default: all)")
    parser.add_argument("--pool", type=int, default=80, help="training images to draw from (default: 80)")
    parser.add_argument("--test", type=int, default=200, help="test images (default: 200)")
    parser.add_argument("--page", action="store_true", help="write docs/images.md and its picture")
    parsed = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    if parsed.page:
        (FOLDER.parent.parent / "docs" / "images.md").write_text(page())
        draw()
        return
    compare([name for name in parsed.kernels.split(";") if name] or list(KERNELS), parsed.pool, parsed.test)


if __name__ == "__main__":
    main()
