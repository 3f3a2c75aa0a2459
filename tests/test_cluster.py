"""Stores computed by Dask's workers: of this machine, and of a scheduler that runs already."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import signal
import socket
import subprocess
import sys

import numpy as np
import psutil
import pytest

from kfx.outcomes import Event, NumericalError
from kfx.store.gram_store import GramStore
from kfx.store.tiles import block_of
from tests.faults.harness import wait_for
from tests.slow_kernel import calls, write_slow

WORDS = ["kernel=slow", "dataset=digits", "dataset.n_train=300", "dataset.n_test=20", "--test", "--tile", "32"]
TILES = 55 + 10
CALLS = 3
"""For one tile at most: the kernel takes one on the diagonal in parts."""


@contextlib.contextmanager
def kfx_gram(folder, *words, **variables):
    """The command in a process of its own, which does not outlive the block. variables: of its environment."""
    command = [sys.executable, "-m", "kfx", "gram", *write_slow(folder), *WORDS, "--store", str(folder / "s"), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process):
    """Its exit code and what it said."""
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def matrices(folder):
    store = GramStore(folder / "s")
    return [block_of(tiles, slice(0, tiles.shape[0]), slice(0, tiles.shape[1])) for tiles in (store.gram, store.test)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The matrices as one process computes them, and the number of calls for it."""
    folder = tmp_path_factory.mktemp("alone")
    with kfx_gram(folder, "kernel.seconds=0.001") as process:
        code, err = ended(process)
    assert code == 0, err
    return matrices(folder), len(calls(folder))


def files_in(folder):
    """The tiles that are there."""
    return [path for name in ("gram", "test") for path in (folder / "s" / name).glob("c/*/*")]


def tiles_in(folder):
    return len(files_in(folder))


def listening(pid):
    found = psutil.Process(pid)
    processes = [found, *found.children(recursive=True)]
    return [c.laddr.ip for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]


@pytest.mark.slow
def test_two_workers_one_of_which_is_killed(tmp_path, expected):
    wanted, count = expected
    with kfx_gram(tmp_path, "--workers", "2", "--dashboard", "127.0.0.1:0", "kernel.seconds=0.05") as process:
        wait_for(lambda: tiles_in(tmp_path) >= 10 or process.poll() is not None)
        assert set(listening(process.pid)) == {"127.0.0.1"}
        before = {path: path.stat().st_ino for path in files_in(tmp_path)}
        workers = {int(line.split()[0]) for line in calls(tmp_path)}
        assert len(workers) == 2
        assert process.pid not in workers
        os.kill(workers.pop(), signal.SIGKILL)
        code, err = ended(process)
    assert code == 0, err
    assert "2 workers; http://127.0.0.1:" in err
    for found, other in zip(matrices(tmp_path), wanted, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-12)
    assert all(path.stat().st_ino == number for path, number in before.items())
    assert count <= len(calls(tmp_path)) <= count + CALLS
    # the one that takes the dead one's place may come too late to find work left
    assert len({line.split()[0] for line in calls(tmp_path)}) in (2, 3)


HOLDER = """
import sys
from kfx.store.cluster import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_folders_of_workers_go_when_their_command_is_gone(tmp_path, monkeypatch):
    from kfx.store.cluster import scratch_folder

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "kfx-workers-of-somebody").mkdir()
    (tmp_path / "kfx-workers-link").symlink_to(tmp_path / "kfx-workers-of-somebody")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    holders = [subprocess.Popen([sys.executable, "-c", HOLDER], env=environment, **pipes) for _ in range(2)]
    killed, alive = (holder.stdout.readline().strip() for holder in holders)
    holders[0].kill()
    holders[0].communicate()
    with scratch_folder() as folder:
        assert not os.path.exists(killed)
        assert os.path.exists(alive)
        assert os.path.exists(folder)
    holders[1].communicate()  # ends by itself
    assert {path.name for path in tmp_path.iterdir()} == {"kfx-workers-of-somebody", "kfx-workers-link"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def scheduler(tmp_path):
    """A scheduler with two worker processes, as a person starts them."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    place = ["--no-dashboard", "--host", "127.0.0.1"]
    commands = [
        ["scheduler", "--port", str(port), *place],
        ["worker", address, "--nworkers", "2", "--nthreads", "1", "--local-directory", str(tmp_path / "d"), *place],
    ]
    with contextlib.ExitStack() as stack:
        for command in commands:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
        yield address


@pytest.mark.slow
def test_a_scheduler_that_runs_already(tmp_path, scheduler, expected):
    with kfx_gram(tmp_path, "--scheduler", scheduler) as process:
        code, err = ended(process)
    assert code == 0, err
    for found, wanted in zip(matrices(tmp_path), expected[0], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    by = {line.split()[0] for line in calls(tmp_path)}
    assert len(by) == 2
    assert str(process.pid) not in by


def test_a_scheduler_that_is_not_there_is_one_line(kfx, tmp_path):
    words = ["dataset=digits", "dataset.n_train=50", "--store", str(tmp_path / "s")]
    address = f"tcp://127.0.0.1:{free_port()}"
    code, _, err = kfx("gram", *words, "--scheduler", address)
    assert code == 2
    assert f"cluster.scheduler={address}: no Dask scheduler answers there" in err


@pytest.mark.slow
def test_a_factor_by_two_workers_is_that_of_one_process(tmp_path, kfx):
    import pandas as pd

    words = [
        "kernel=cnngp", "dataset=digits", "dataset.n_train=500", "dataset.n_test=60", "optimizer=none",
        "optimizer.iterations=1", "sampler.batch_size=40", "figures=false", "device.precision_check=off",
        "evaluation.batches=1", "evaluation.n_interpolation=null", "evaluation.memory=1MB", "device.threads=2",
        "evaluation.regularization.value=[1e-4,1e-3]", "cluster.dashboard=127.0.0.1:0",
    ]  # fmt: skip
    found = []
    for count in (1, 2):
        folder = tmp_path / str(count)
        code, _, err = kfx("run", *words, f"cluster.workers={count}", f"hydra.run.dir={folder}")
        assert code == 0, err
        assert err.count("Cholesky, tiles") > 2
        found.append(pd.read_csv(folder / "evaluation.csv")["value"])
    np.testing.assert_allclose(*found, rtol=1e-9)


@pytest.mark.slow
def test_what_a_worker_cannot_compute_is_said_as_in_one_process(tmp_path):
    write_slow(tmp_path)
    spoilt = (tmp_path / "slow.py").read_text().replace("/ 200)", "/ 200) / (len(x) != 32)")
    (tmp_path / "slow.py").write_text(spoilt)
    command = [
        sys.executable, "-m", "kfx", "gram", "--plugin", "slow.py", *WORDS, "--store", "t",
        "--workers", "2", "--dashboard", "127.0.0.1:0",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "diverged: " in done.stderr
    assert "not finite" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_with_its_event_comes_whole_from_another_process():
    error = pickle.loads(pickle.dumps(NumericalError(Event.DIVERGED, "why")))
    assert (error.event, error.detail, str(error)) == (Event.DIVERGED, "why", "diverged: why")


def test_without_dask_the_words_say_what_is_missing(kfx, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "kfx.experiment.options.find_spec",
        lambda name: None if name in ("distributed", "dask_jobqueue") else found(name),
    )
    code, _, err = kfx("gram", "dataset=digits", "--store", str(tmp_path / "s"), "--workers", "2")
    assert code == 2
    assert "cluster.workers=2, cluster.scheduler=None: needs Dask; pip install 'kernel-flows[cluster]'" in err
    assert kfx("gram", "dataset=digits", "dataset.n_train=50", "--store", str(tmp_path / "s"))[0] == 0


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(tmp_path, expected):
    with kfx_gram(tmp_path) as process:
        wait_for(lambda: tiles_in(tmp_path) >= 5 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        code, err = ended(process)
    assert code == 130
    assert "Traceback" not in err
    assert 5 <= tiles_in(tmp_path) < TILES
    with kfx_gram(tmp_path) as process:
        code, err = ended(process)
    assert code == 0, err
    assert expected[1] <= len(calls(tmp_path)) <= expected[1] + CALLS


SBATCH = """#!/bin/sh
# Slurm of one machine: what is submitted begins at once
sh "$1" > "$1.log" 2>&1 &
echo "Submitted batch job $!"
"""
OF_SLURM = """
jobqueue:
  slurm:
    cores: 1
    processes: 1
    memory: 2GB
    interface: lo
    log-directory: null
"""


@pytest.mark.slow
def test_slurm_as_dasks_own_file_describes_it(tmp_path, expected):
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"sbatch": SBATCH, "scancel": '#!/bin/sh\nkill "$@"\n'}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    (tmp_path / "dask").mkdir()
    (tmp_path / "dask" / "jobqueue.yaml").write_text(OF_SLURM)
    own = {"PATH": f"{commands}:{os.environ['PATH']}", "DASK_CONFIG": str(tmp_path / "dask")}
    with kfx_gram(tmp_path, "--scheduler", "slurm", "--workers", "2", **own) as process:
        code, err = ended(process)
    assert code == 0, err
    for found, wanted in zip(matrices(tmp_path), expected[0], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert str(process.pid) not in {line.split()[0] for line in calls(tmp_path)}
