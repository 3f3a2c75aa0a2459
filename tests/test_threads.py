"""Threads: how many, for what, and whom they listen to."""

from __future__ import annotations

import json

import pytest
import torch

from kfx.numerics import threads
from kfx.outcomes import ConfigError

SMALL = ["dataset=digits", "dataset.n_train=60", "dataset.n_test=30", "sampler.batch_size=20", "optimizer.iterations=2"]


def test_small_work_is_for_one_thread():
    assert threads.worth(8, 100**3) == 1
    assert threads.worth(8, 600**3) == 8


def test_omp_num_threads_is_honoured_and_recorded(kfx, in_folder, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads.available() == 3
    assert kfx("run", *SMALL, "device.precision_check=off", "figures=false", "hydra.run.dir=r")[0] == 0
    found = json.loads((in_folder / "r/environment.json").read_text())
    assert (found["threads"], found["threads_of_fit"], found["threads_of_evaluation"]) == (3, 1, 1)
    assert found["threading"]["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(ConfigError, match="OMP_NUM_THREADS=many"):
        threads.available()


def test_a_number_of_ones_own_is_for_everything(kfx, in_folder):
    words = [*SMALL, "device.threads=2", "device.precision_check=off", "figures=false"]
    assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
    found = json.loads((in_folder / "r/environment.json").read_text())
    assert (found["threads"], found["threads_of_fit"], found["threads_of_evaluation"]) == (2, 2, 2)


def test_the_pools_of_numpy_and_torch_do_not_meet():
    from threadpoolctl import threadpool_info

    threads.use(2)
    assert torch.get_num_threads() == 2
    assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}
