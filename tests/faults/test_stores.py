"""A store whose process, or one of whose workers, is killed at random moments loses the tiles in flight and no more."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial

import numpy as np
import psutil
import pytest

from tests.faults.conftest import FULL, needs_full
from tests.faults.harness import Command, finish, wait_for
from tests.slow_kernel import calls, write_slow
from tests.test_cluster import CALLS, TILES, ended, expected, files_in, kfx_gram, matrices

__all__ = ["expected"]
_MOST_IN_FLIGHT = 2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(6 if FULL else 1))
def test_kills_at_random_moments_cost_the_tiles_in_flight(tmp_path, counts, expected, seed):
    rng, kills = random.Random(seed), 0
    wanted, at_least = expected
    while kills < 5 if FULL else kills < 2:
        before = {path: path.stat().st_ino for path in files_in(tmp_path)}
        called = len(calls(tmp_path))
        workers = rng.choice([1, 2])
        words = ["--workers", "2", "--dashboard", "127.0.0.1:0"] if workers == 2 else []
        with kfx_gram(tmp_path, "kernel.seconds=0.1", *words) as process:
            victim = rng.choice(["parent", "worker"]) if workers == 2 else "parent"
            moment = rng.uniform(0.0, 0.8)
            while len(calls(tmp_path)) <= called and process.poll() is None:
                time.sleep(0.01)
            time.sleep(moment)
            if process.poll() is not None:
                break
            own = [int(line.split()[0]) for line in calls(tmp_path)[called:]]
            os.kill(process.pid if victim == "parent" else own[-1], signal.SIGKILL)
            kills += 1
            counts["store kills"] += 1
            if victim == "worker":  # the other one, and its successor, go on; then all of it is stopped
                time.sleep(rng.uniform(0.0, 1.0))
                process.kill()
                kills += 1
                counts["store kills"] += 1
            children = psutil.Process().children(recursive=True)
        assert all(path.stat().st_ino == number for path, number in before.items()), "a finished tile was made again"
        psutil.wait_procs(children, timeout=20)  # workers end with who began them
    with kfx_gram(tmp_path, "kernel.seconds=0.1") as process:
        code, err = ended(process)
    assert code == 0, err
    assert len(files_in(tmp_path)) == TILES
    assert at_least <= len(calls(tmp_path)) <= at_least + kills * _MOST_IN_FLIGHT * CALLS
    for found, other in zip(matrices(tmp_path), wanted, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-12)


def test_a_tile_that_cannot_be_written_costs_itself(tmp_path):
    words = ["gram", "dataset=digits", "dataset.n_train=300", "--tile", "128", "--store", "s"]
    small = Command(tmp_path, *words, limits={"RLIMIT_FSIZE": 100_000})
    assert small.wait() == 1
    assert "a tile cannot be written (File too large); what is finished stays" in small.output()
    assert "Traceback" not in small.output()
    assert not list((tmp_path / "s").rglob("*.partial"))
    assert finish(tmp_path, *words) == 0
    assert len(files_in(tmp_path)) == 6


def _is_there_or_over(folder, pattern, process):
    return any(folder.glob(pattern)) or not process.is_alive()


_SLOW_RUN = [
    "kernel=slow", "optimizer=none", "optimizer.iterations=1", "dataset=digits", "dataset.n_train=300",
    "dataset.n_test=20", "sampler.batch_size=20", "figures=false", "evaluation.batches=0",
    "evaluation.n_interpolation=null", "checkpoint.iterations=1", "device.precision_check=off", "hydra.run.dir=r",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "moments"),
    [
        (  # killed while λ is chosen, and while the kernel is evaluated
            ["kernel.seconds=0.1", "evaluation.memory=1MB", "regularization.selection=validation",
             "regularization.candidates=[1e-3,1e-1]", "regularization.folds=2", "regularization.points=null"],
            ["known/*", "*/test/c/*/*"],
        ),
        (  # killed twice in the pass over the points
            ["kernel.seconds=0.3", "evaluation.solver=nystrom", "evaluation.centres=20", "evaluation.choose=uniform",
             "regularization.selection=leave_one_out"],
            ["sums-*/sums/1.npz", "sums-*/sums/3.npz"],
        ),
    ],
    ids=["gram", "pass"],
)  # fmt: skip
def test_a_run_that_is_killed_goes_on_from_the_tiles(tmp_path, counts, words, moments):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        write_slow(tmp_path / name)
    plugin = ["--plugin", "slow.py"]
    began = ["run", *plugin, *_SLOW_RUN, *words]
    assert finish(tmp_path / "whole", *began, "kernel.seconds=0.001") == 0  # what takes time changes no number
    run = tmp_path / "killed" / "r"
    for moment in moments:
        command = Command(tmp_path / "killed", *began)
        wait_for(partial(_is_there_or_over, run / "grams", moment, command.process))
        command.signal(signal.SIGKILL)
        command.wait()
        counts["store kills"] += 1
        began = ["resume", "r", *plugin]
    evaluated = run / "evaluation.csv"
    assert not evaluated.exists() or "trained" not in evaluated.read_text()
    assert finish(tmp_path / "killed", *began) == 0
    assert "were there" in (tmp_path / "killed" / "log").read_text()
    assert evaluated.read_text() == (tmp_path / "whole" / "r" / "evaluation.csv").read_text()
    assert not (run / "grams").exists()


@needs_full
@pytest.mark.timeout(300)
def test_the_next_command_removes_the_folders_of_workers_of_a_killed_one_alone(tmp_path, counts):
    scratch = tmp_path / "scratch"
    for name in ("scratch", "killed", "alive", "next"):
        (tmp_path / name).mkdir()
    workers = ["--workers", "2", "--dashboard", "127.0.0.1:0"]

    def folders():
        return set(scratch.glob("kfx-workers-*"))

    def begun(name, process):
        """Wait until its workers compute."""
        own = str(process.pid)
        wait_for(lambda: {line.split()[0] for line in calls(tmp_path / name)} - {own} or process.poll() is not None)
        assert process.poll() is None, ended(process)

    with kfx_gram(tmp_path / "killed", "kernel.seconds=0.5", *workers, TMPDIR=str(scratch)) as process:
        begun("killed", process)
        left = folders()
        process.kill()
        counts["store kills"] += 1
    assert len(left) == 1
    with kfx_gram(tmp_path / "alive", "kernel.seconds=2", *workers, TMPDIR=str(scratch)) as alive:
        begun("alive", alive)
        held = folders()
        assert len(held) == 1
        assert not held & left
        with kfx_gram(tmp_path / "next", "kernel.seconds=0.001", *workers, TMPDIR=str(scratch)) as other:
            code, err = ended(other)
        assert code == 0, err
        assert alive.poll() is None
        assert folders() == held, "its owner lives"
        alive.send_signal(signal.SIGINT)
        ended(alive)
    assert not folders(), "who ends by itself leaves none"
