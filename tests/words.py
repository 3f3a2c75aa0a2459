"""Words of small runs that several tests share."""

from __future__ import annotations

DRAWN = [
    "dataset=digits",
    "dataset.n_train=120",
    "dataset.n_test=60",
    "sampler.batch_size=30",
    "optimizer.iterations=6",
]


SMALL = [*DRAWN, "figures=false", "device.precision_check=off"]
