"""Kernels and what tunes them, on the same images with the same seconds for each fit: one table by `kfx compare`.

python scripts/compare_methods.py mnist [--seconds 180] [--train 10000] [--test 2000] [--seed 0] [--folder runs/methods]

How many iterations a method does in that time is measured first, on this machine, in a short run of each; data,
evaluation and pictures are not counted. Each is then evaluated by kernel ridge regression on all training images; what
a head of its own predicts, as the deep kernel machine's posterior, stands in a second table. Each has the preprocessing
that papers use it with, the deep kernel machine alone random crops. Methods run one after another: whatever else the
machine does, it does to all.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pandas as pd

_NETWORK = {"mnist": "mnist", "fashion_mnist": "fashion", "cifar10": "fashion"}
_DKM = ["kernel=conv_dkm", "objective=elbo", "optimizer=adam_dkm_final", "sampler=epochs", "sampler.batch_size=256"]
_DKM += ["kernel.inducing=[16,32,64]", "kernel.strides=[2,2,2]", "kernel.regularization_strength=0.01"]
_DKM += ["kernel.inducing_normalization=batch", "kernel.point_normalization=batch"]
_TRIAL, _FIRST = 12, 3


def methods(dataset: str) -> dict[str, list[str]]:
    """What is run, by name."""
    centered, unit = "dataset.preprocess=[center]", "dataset.preprocess=[unit_norm]"
    network = ["kernel=network_features", f"kernel.architecture={_NETWORK[dataset]}", "optimizer=adam_network", unit]
    batches = ["sampler.batch_size=600"]
    length = "kernel.initial=mean_squared_distance"
    return {
        "rbf": ["kernel=rbf", length, "optimizer=adam", unit, *batches],
        "nngp": ["kernel=nngp", "kernel.depth=2", "optimizer=adam", centered, *batches],
        "cnngp": ["kernel=cnngp", "kernel.architecture=simple", "optimizer=adam", centered, *batches],
        "flow": ["kernel=rbf", length, "optimizer=flow_euler", unit, *batches],
        "network_rho": [*network, "sampler.batch_size=500"],
        "network_cross_entropy": [*network, "objective=cross_entropy", "sampler.batch_size=100"],
        "dkm": [*_DKM, "dataset.preprocess=[normalize_channels,zca,normalize_channels]", "sampler.augment=[crop]"],
    }


def run(words: list[str], folder: Path) -> pd.DataFrame:
    """The trace of a run, which is made unless it is there."""
    command = [sys.executable, "-m", "kfx", "run", *words, f"hydra.run.dir={folder}", "resume=true"]
    subprocess.run(command, check=True)
    return pd.read_csv(folder / "trace.csv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=sorted(_NETWORK))
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--train", type=int, default=10_000)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", nargs="*", default=[], help="methods to leave out")
    parser.add_argument("--folder", type=Path, default=Path("runs/methods"))
    arguments = parser.parse_args()
    folder = arguments.folder / arguments.dataset
    common = [f"dataset={arguments.dataset}", f"dataset.n_train={arguments.train}", f"dataset.n_test={arguments.test}"]
    common += [f"evaluation.n_interpolation=[1000,{arguments.train}]", f"seed={arguments.seed}", "device.dtype=float32"]
    if arguments.dataset == "cifar10":
        common.append(f"dataset.batches={list(range(1, -(-arguments.train // 10_000) + 1))}".replace(" ", ""))
    chosen = {name: words for name, words in methods(arguments.dataset).items() if name not in arguments.without}
    for name, words in chosen.items():
        short = [word for word in common if not word.startswith("evaluation.")]
        short += [*words, f"optimizer.iterations={_TRIAL}", "evaluation.n_interpolation=[100]"]
        trial = run([*short, "evaluation.batches=0", "figures=false"], folder / "trials" / name)
        each = (trial["seconds"].iloc[-1] - trial["seconds"].iloc[_FIRST]) / (_TRIAL - 1 - _FIRST)
        iterations = max(int(arguments.seconds / each), 10)
        print(f"{name}: {each:.4f} s an iteration, {iterations} of them", flush=True)
        run([*common, *words, f"optimizer.iterations={iterations}", "flow.record_layers=false"], folder / name)
    runs = [str(folder / name) for name in methods(arguments.dataset) if (folder / name / "metrics.json").is_file()]
    for metric in ("accuracy", "head_accuracy"):
        print(f"\n{metric} on {arguments.test} test images, N_I {arguments.train}:", flush=True)
        subprocess.run(
            [sys.executable, "-m", "kfx", "compare", *runs, "--by", "kernel,optimizer,objective", "--metric", metric],
            check=False,
        )


if __name__ == "__main__":
    main()
