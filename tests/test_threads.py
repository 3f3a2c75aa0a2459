"""Threads: how many, for what, and whom they listen to."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kfx.numerics import process, threads
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


# ---- work in order


@pytest.fixture
def three_threads():
    with process.exclusively():
        threads.use(3)
        yield


def finished_within(seconds, call):
    """What the call returns or raises; it fails the test where it hangs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(timeout=seconds)


def test_results_come_in_the_items_order(three_threads):
    def work(k):
        time.sleep(0.002 * (k % 3))
        return k * k

    assert finished_within(30, lambda: list(threads.in_order(work, range(50)))) == [(k, k * k) for k in range(50)]


@pytest.mark.parametrize("bad", [0, 1, 5, 29])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_comes_out_and_nothing_hangs(three_threads, bad, error):
    def work(k):
        time.sleep(0.001)
        if k == bad:
            raise error(k)
        return k

    with pytest.raises(error):
        finished_within(30, lambda: list(threads.in_order(work, range(30))))
    assert finished_within(30, lambda: len(list(threads.in_order(abs, range(30))))) == 30


def test_who_stops_early_waits_for_what_runs(three_threads):
    running = []

    def work(k):
        running.append(k)
        time.sleep(0.01)
        running.remove(k)

    results = threads.in_order(work, range(30))
    next(results)
    finished_within(30, results.close)
    assert running == []


@pytest.mark.slow
def test_work_within_work_and_in_a_forked_child(three_threads):
    def work(k):
        return sum(value for _, value in threads.in_order(lambda j: j * k, range(8)))

    assert finished_within(30, lambda: [v for _, v in threads.in_order(work, range(20))]) == [28 * k for k in range(20)]
    child = (
        "import os; from kfx.numerics import threads as t; t.use(2); g = lambda: len([*t.in_order(abs, range(9))]); g()"
    )
    child += "; p = os.fork(); n = g(); os._exit(n != 9) if p == 0 else None; assert os.waitpid(p, 0)[1] == 0"
    subprocess.run([sys.executable, "-W", "ignore", "-c", child], check=True, timeout=60)
