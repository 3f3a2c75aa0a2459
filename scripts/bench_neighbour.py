"""What a busy neighbour costs: a layer or an iteration, with nothing else running and beside one busy core.

    python scripts/bench_neighbour.py [--repeats 2] [--cases roll,rbf_100]

Each figure is from whole runs of the command, the least of the repeats, after the first fifth of the trace. `as before`
is what kfx did until it chose its threads: all cores, OpenMP's idle threads spinning as they do by default.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = {
    "roll": ["+experiment=owhadi_yoo/swiss_roll_nugget", "optimizer.iterations=1500"],
    "rbf_100": ["dataset=digits", "sampler.batch_size=100", "optimizer.iterations=600"],
    "rbf_300": ["dataset=digits", "sampler.batch_size=300", "optimizer.iterations=250"],
    "rbf_600": ["dataset=digits", "sampler.batch_size=600", "optimizer.iterations=100"],
    "rbf_1200": ["dataset=digits", "sampler.batch_size=1200", "optimizer.iterations=25"],
    "mnist_flow": [
        "+experiment=owhadi_yoo/mnist_flow",
        "dataset.n_train=10000",
        "dataset.n_test=500",
        "optimizer.iterations=10",
        "evaluation.n_interpolation=[10]",
    ],
}
QUIET = ["figures=false", "device.precision_check=off", "evaluation.batches=0", "flow.snapshots=0"]
NO_MEASURES = ["follow.every=0", "follow.last=0"]
WAYS: dict[str, tuple[dict[str, str], list[str]]] = {
    "as before": ({"GOMP_SPINCOUNT": "300000"}, [f"device.threads={len(os.sched_getaffinity(0))}"]),
    "kfx": ({}, []),
}


def milliseconds(words: list[str], environment: dict[str, str]) -> float:
    """A row of the trace, on average, without the first fifth."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "kfx", "run", *words, *QUIET, *NO_MEASURES, f"hydra.run.dir={folder}/r"]
        subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=True)
        with (Path(folder) / "r/trace.csv").open(newline="") as stream:
            seconds = [float(row["seconds"]) for row in csv.DictReader(stream)]
    first = len(seconds) // 5
    return 1e3 * (seconds[-1] - seconds[first]) / (len(seconds) - 1 - first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cases", default=",".join(CASES))
    arguments = parser.parse_args()
    print(f"{'case':<12}{'threads':<12}{'alone, ms':>12}{'beside, ms':>12}{'ratio':>8}")
    for case in arguments.cases.split(","):
        for way, (environment, words) in WAYS.items():
            found = []
            for busy in (0, 1):
                neighbours = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(busy)]
                try:
                    runs = [milliseconds([*CASES[case], *words], environment) for _ in range(arguments.repeats)]
                    found.append(min(runs))
                finally:
                    for neighbour in neighbours:
                        neighbour.kill()
                        neighbour.wait()
            print(f"{case:<12}{way:<12}{found[0]:>12.2f}{found[1]:>12.2f}{found[1] / found[0]:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
