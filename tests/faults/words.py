"""Words of small runs that several tests share."""

from __future__ import annotations

SMALL = [
    "dataset=digits",
    "dataset.n_train=60",
    "dataset.n_test=30",
    "sampler.batch_size=20",
    "optimizer.iterations=5",
    "device.precision_check=off",
    "figures=false",
]
