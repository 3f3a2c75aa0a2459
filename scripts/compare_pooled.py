"""Compare convolution kernels with and without pooling on small parts of CIFAR-10, as Arora et al. 2020, Table 2.

python scripts/compare_pooled.py [--kernels Myrtle-5] [--pool 160] [--test 500] [--changes "flips;ZCA"]
python scripts/compare_pooled.py --picture

One class-balanced pool of training images and the first test images: each kernel's matrices on them are computed once,
by blocks of rows in runs/images/, and a second call goes on. All draws are submatrices. N training images, N/10 of each
class, are drawn twenty times; λ is 0, as published, and beside it chosen by leave-one-out errors of the draw alone.
--changes adds the same with σ_b² = 0.1, with variances trained from there by ρ on batches of 100 images of the pool,
averaged over mirror images (flips), or on whitened images (ZCA), and the gain over the unchanged kernel in pairs of
equal draws and test images. The images are read from KFX_DATA_DIR/cifar10.
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

from kfx import KernelFlowClassifier
from kfx.data.dataset import preprocess
from kfx.data.images import cifar10
from kfx.kernels import CNNGP, CNTK, Conv2d, Dense, Flipped, ReLU, Sequential
from kfx.kernels.base import Kernel
from kfx.kernels.cnngp.architectures import architecture

FOLDER = Path(__file__).parent.parent / "runs" / "images"
IMAGE = (32, 32)
DRAWS = 20
VARIANCES = ("weight_variance", "bias_variance")
CHANGES = ("σ_b² = 0.1", "trained by ρ", "flips", "ZCA")
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


def images(pool: int, test: int, whitened: bool) -> tuple[torch.Tensor, np.ndarray, torch.Tensor, np.ndarray]:
    """Training images, as many of each class, and test images, with their classes; channels standardized.

    whitened: whether pixels are whitened as well, by their covariance over 10 000 training images.
    """
    data = cifar10(None, test, [1], None, np.random.default_rng(0))
    if whitened:
        data = preprocess(data, ["normalize_channels", "zca"])
    classes = data.y_train.argmax(axis=1)
    at = np.sort(np.concatenate([np.flatnonzero(classes == c)[: pool // 10] for c in range(10)]))
    data = replace(data, x_train=data.x_train[at], y_train=data.y_train[at])
    if not whitened:
        data = preprocess(data, ["normalize_channels"])
    x, z = (torch.as_tensor(each, dtype=torch.float32) for each in (data.x_train, data.x_test))
    return x, classes[at], z, data.y_test.argmax(axis=1)


def changed(name: str, change: str, x: torch.Tensor, classes: np.ndarray) -> Kernel:
    """Return the kernel with a change of `CHANGES`; the variances trained by ρ are kept on disk."""
    if change == "flips":
        return Flipped(KERNELS[name])
    if change == "ZCA":
        return KERNELS[name]
    start = KERNELS[name].with_parameters(bias_variance=0.1)
    if change == "σ_b² = 0.1":
        return start
    path = FOLDER / "matrices" / f"{_file(name)}-{len(x)}-variances.npz"
    if not path.exists():
        fit = KernelFlowClassifier(
            start,
            objective="rho",
            optimizer={"iterations": 20, "fall_back": False},
            sampler={"batch_size": min(100, len(x))},
            regularization=1e-6,
            device={"dtype": "float32"},
            verbose=True,
        ).fit(x.numpy(), classes)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{key: fit.kernel_.parameters[key] for key in VARIANCES})
    return start.with_parameters(**{key: float(value) for key, value in np.load(path).items()})


def _file(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "_")


def matrices(
    name: str, kernel: Kernel, x: torch.Tensor, z: torch.Tensor, rows: int = 20
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return K(x, x), K(z, x) and the seconds that they took, block of rows by block of rows on disk."""
    folder = FOLDER / "matrices" / _file(name)
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


def right(k: np.ndarray, k_test: np.ndarray, classes: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return which test images are classified right with λ = 0 and with λ by leave-one-out errors, (2, test)."""
    y = np.where(np.arange(10) == classes[:, None], 0.9, -0.1)
    values, vectors = np.linalg.eigh(k)
    scale, best = np.trace(k) / len(k), (np.inf, 0.0)
    found = {}
    for ridge in RIDGES:
        inverse = (vectors / (values + max(ridge, 1e-12) * scale)) @ vectors.T
        weights = inverse @ y
        found[ridge] = (k_test @ weights).argmax(axis=1) == test
        left_out = y - weights / np.diagonal(inverse)[:, None]
        best = min(best, (float(((left_out - y) ** 2).mean()), ridge))
    return np.stack([found[0.0], found[best[1]]])


def draws(n: int, classes: np.ndarray) -> list[np.ndarray]:
    """Return the positions of n images, as many of each class, drawn from the pool; once if they are the pool."""
    found = []
    for draw in range(DRAWS if n < len(classes) else 1):
        rng = np.random.default_rng([n, draw])
        of_class = [rng.choice(np.flatnonzero(classes == c), n // 10, replace=False) for c in range(10)]
        found.append(np.concatenate(of_class))
    return found


def error_of(found: np.ndarray) -> float:
    """Return the standard error of the mean of (draws, test): the draws differ, the test images are the same."""
    of_draws = found.mean(axis=1).var(ddof=1) / len(found) if len(found) > 1 else 0.0
    return float(np.sqrt(of_draws + found.mean(axis=0).var() / found.shape[1]))


def compare(names: list[str], changes: list[str], pool: int, test: int) -> None:
    """Compute what is missing, and write the rows of these kernels."""
    rows = []
    for name in names:
        unchanged: dict[int, np.ndarray] = {}
        for change in ("", *changes):
            x, classes, z, of_test = images(pool, test, change == "ZCA")
            kernel, label = (
                (changed(name, change, x, classes), f"{name}, {change}") if change else (KERNELS[name], name)
            )
            k, k_test, seconds = matrices(label, kernel, x, z)
            pairs = len(x) * (len(x) + 20) / 2 + len(x) * len(z)
            for n in (n for n in PUBLISHED if n <= len(x)):
                each = [right(k[np.ix_(at, at)], k_test[:, at], classes[at], of_test) for at in draws(n, classes)]
                zero, by_loo = np.array(each, float).swapaxes(0, 1)
                gain = zero - unchanged.setdefault(n, zero)
                row = {"kernel": label, "n_train": n, "draws": len(each), "accuracy": zero.mean(),
                       "standard_error": error_of(zero), "accuracy_loo": by_loo.mean(), "pool": len(x),
                       "n_test": len(z), "ms_a_pair": seconds / pairs * 1e3}  # fmt: skip
                row |= {key: kernel.parameters[key] for key in VARIANCES}
                rows.append(row | ({"gain": gain.mean(), "gain_error": error_of(gain)} if change else {}))
    table = pd.DataFrame(rows).round(5)
    path = FOLDER / "cifar10.csv"
    if path.exists():
        before = pd.read_csv(path)
        table = pd.concat([before[~before["kernel"].isin(table["kernel"])], table], ignore_index=True)
    table.to_csv(path, index=False)
    print(table.to_string(index=False))


def recorded() -> pd.DataFrame:
    """The recorded accuracies in %, with one row for each kernel and number of training images."""
    found = pd.read_csv(FOLDER / "cifar10.csv")
    of_share = ["accuracy", "standard_error", "accuracy_loo", "gain", "gain_error"]
    found[of_share] *= 100
    return found


def table() -> str:
    """The accuracies with constant variances, a row for each number of training images."""
    found = recorded().set_index(["n_train", "kernel"])
    lines = [
        f"| training images | CNTK-14, as printed | {' | '.join(KERNELS)} |",
        "|---:|---:|" + "---:|" * len(KERNELS),
    ]
    for n in found.index.unique("n_train"):
        cells = [f"{PUBLISHED[n]:.2f}"]
        for name in KERNELS:
            row = found.loc[(n, name)] if (n, name) in found.index else None
            shown = row is not None and f"{row.accuracy:.1f} ± {row.standard_error:.1f} ({row.accuracy_loo:.1f})"
            cells.append(shown or "-")
        lines.append(f"| {n} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gains() -> str:
    """The gains of changes over the unchanged kernels, a row for each kernel and change."""
    found = recorded().set_index(["kernel", "n_train"])
    sizes = sorted(found.index.unique("n_train"))
    lines = [f"| kernel | change | {' | '.join(map(str, sizes))} |", "|---|---|" + "---:|" * len(sizes)]
    for name, change in ((name, change) for name in KERNELS for change in CHANGES):
        own = [found.loc[at] if (at := (f"{name}, {change}", n)) in found.index else None for n in sizes]
        if any(row is not None for row in own):
            cells = ["-" if row is None else f"{row.gain:+.1f} ± {row.gain_error:.1f}" for row in own]
            lines.append(f"| {name} | {change} | {' | '.join(cells)} |")
    return "\n".join(lines)


def farthest() -> float:
    """By how many standard errors the accuracies of CNTK-14 are at most from the published ones."""
    own = recorded().query("kernel == 'CNTK-14, pooled'").set_index("n_train")
    return float(((own["accuracy"] - pd.Series(PUBLISHED)).abs() / own["standard_error"]).max())


def draw() -> None:
    """Draw accuracy against the number of training images into runs/images/accuracy.png."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = recorded()
    picture = Figure(figsize=(6.4, 3.8), dpi=130, layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    shown = {n: value for n, value in PUBLISHED.items() if n <= found["n_train"].max()}
    axes.plot(list(shown), list(shown.values()), "k--", marker="o", mfc="white", label="CNTK-14, as printed")
    for colour, name in zip(("#d55e00", "#0072b2", "#009e73"), KERNELS, strict=True):
        for label, line in ((name, "-"), (f"{name}, trained by ρ", ":")):
            own = found[found["kernel"] == label]
            if not own.empty:
                axes.errorbar(own["n_train"], own["accuracy"], own["standard_error"], color=colour, linestyle=line,
                              marker="o", capsize=3, label=label)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(shown), [str(n) for n in shown])
    axes.set_xlabel("training images of CIFAR-10")
    axes.set_ylabel("accuracy, %")
    axes.grid(color="#d5d9e0")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    picture.savefig(FOLDER / "accuracy.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", default="", help="names, separated by semicolons (default: all)")
    parser.add_argument("--pool", type=int, default=80, help="training images to draw from (default: 80)")
    parser.add_argument("--test", type=int, default=200, help="test images (default: 200)")
    parser.add_argument("--changes", default="", help=f"of {'; '.join(CHANGES)} (default: none)")
    parser.add_argument("--picture", action="store_true", help="draw the recorded accuracies; docs/pages.py has tables")
    parsed = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    if parsed.picture:
        draw()
        return
    kernels, changes = ([name for name in words.split(";") if name] for words in (parsed.kernels, parsed.changes))
    compare(kernels or list(KERNELS), changes, parsed.pool, parsed.test)


if __name__ == "__main__":
    main()
