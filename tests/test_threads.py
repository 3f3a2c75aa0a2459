"""Threads: how many, as whom they listen to, and that the first evaluation of a process is as any other."""

from __future__ import annotations

import json
import multiprocessing
import os

import pytest
import torch

from kfx import threads
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


def _first_evaluation(results):
    import hashlib

    from kfx import build
    from kfx.config import load
    from kfx.streams import Streams

    threads.use(2)
    settings = load(["dataset=digits", "sampler.batch_size=300"])
    data = build.dataset(settings.dataset, Streams(0))
    kernel = build.kernel(settings.kernel, (8, 8))
    x, y = torch.as_tensor(data.x_train), torch.as_tensor(data.y_train)
    loss = build.loss_maker(settings)(kernel, x, y)
    batch = build.sampler(settings.sampler, 1).start(x, y).draw(Streams(0)["batches"])
    found = loss(kernel.flat, batch)
    content = repr((found.rho, found.regularization, found.gradient.tolist())).encode()
    results.put(hashlib.sha256(content).hexdigest())


@pytest.mark.timeout(1200)
def test_first_evaluations_in_fresh_processes_have_the_same_bits():
    """500 with `make faults`, four at a time, so that threads start while others compute."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kfx.build", "kfx.config", "sklearn.datasets"])
    count, found = 500 if os.environ.get("KFX_FAULTS") == "full" else 16, []
    results = context.Queue()
    for start in range(0, count, 4):
        processes = [context.Process(target=_first_evaluation, args=(results,)) for _ in range(min(4, count - start))]
        for process in processes:
            process.start()
        found += [results.get(timeout=120) for _ in processes]
        for process in processes:
            process.join()
    assert len(found) == count
    assert len(set(found)) == 1
