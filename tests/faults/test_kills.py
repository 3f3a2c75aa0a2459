"""Runs killed at random moments end as if nothing had happened."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time

import pytest

from kfx import load_run
from kfx.outcomes import CheckpointError
from kfx.record.checkpoint import read, write
from tests.faults.conftest import FULL
from tests.faults.harness import Command, finish, results, rows, wait_for

INTERVAL = 5
WORDS = [
    "dataset=digits",
    "dataset.n_train=150",
    "dataset.n_test=60",
    "sampler.batch_size=60",
    "optimizer.iterations=60",
    "evaluation.n_interpolation=[40,120]",
    "evaluation.repeats=3",
    "device.threads=1",
    "device.precision_check=off",
    "figures=false",
    f"checkpoint.iterations={INTERVAL}",
    "checkpoint.seconds=1000",
]
FOLDS = ["dataset.n_test=0", "evaluation=k_fold", "evaluation.folds=3", "evaluation.n_interpolation=[40,90]"]
OPTIMIZERS = {
    "none": [],
    "sgd": [],
    "nesterov": [],
    "adam": ["optimizer.final=best"],
    "lbfgs": ["objective=nll", "optimizer.tolerance=1e-300"],
    "finite_difference": [],
    "adam dynamic": ["sampler=dynamic"],
    "adam in folds": FOLDS,
    "grid": ["optimizer.points=7", "kernel.starts=2", "regularization.selection=validation"],
    "flow_euler": ["flow.record_layers=true", "follow.every=20", "regularization.value=1e-2"],
    "hybrid": ["follow.every=20", "regularization.value=1e-2"],
    "flow_rk45": ["optimizer.iterations=20", "flow.record_layers=true", "regularization.value=1e-2"],
    "flow_euler in folds": [*FOLDS, "follow.every=20", "regularization.value=1e-2"],
    "bayesian": ["optimizer.iterations=14", "optimizer.initial_points=8", "optimizer.noise=gaussian"],
    "bayesian in folds": [*FOLDS, "optimizer.iterations=9", "optimizer.initial_points=6"],
}


def words_for(optimizer):
    in_folds = "folds" in optimizer
    common = [word for word in WORDS if not (in_folds and word.startswith(("dataset.n_test", "evaluation.")))]
    return ["run", *common, f"optimizer={optimizer.split()[0]}", *OPTIMIZERS[optimizer], "hydra.run.dir=r"]


def tear(path, rng):
    """Cut a file short, or change one of its bytes."""
    content = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        path.write_bytes(content[: rng.randrange(len(content))])
    else:
        content[rng.randrange(len(content))] ^= 0xFF
        path.write_bytes(content)


SOME = ("flow_euler in folds", pytest.param("bayesian in folds", marks=pytest.mark.slow))


@pytest.mark.slow
@pytest.mark.timeout(2400 if FULL else 600)
@pytest.mark.parametrize("optimizer", OPTIMIZERS if FULL else SOME)
def test_killed_at_random_moments(tmp_path, optimizer, full, counts):
    rng = random.Random(f"{optimizer}")
    words = words_for(optimizer)
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    started = time.monotonic()
    assert finish(undisturbed, *words) == 0
    duration = time.monotonic() - started
    expected = results(undisturbed / "r")
    total = rows(undisturbed / "r")
    for trial in range(30 if full else 1):
        folder = tmp_path / str(trial)
        folder.mkdir()
        run = folder / "r"
        command = Command(folder, *words)
        if rng.random() < 0.7:  # in the middle of the fit, else at any time of its life
            target = rng.randrange(total)
            wait_for(lambda target=target, run=run, c=command: rows(run) > target or not c.process.is_alive())
        else:
            time.sleep(rng.random() * duration)
        kind = rng.choice([signal.SIGKILL, signal.SIGTERM])
        command.signal(kind)
        command.wait()
        counts["injected"] += 1
        if not (run / "metrics.json").exists():  # killed before it had begun
            shutil.rmtree(run, ignore_errors=True)
            assert finish(folder, *words) == 0
            assert results(run) == expected
            continue
        before = rows(run)
        record = load_run(run)  # readable whatever happened
        assert record.metrics["status"] in ("running", "interrupted", "completed")
        assert len(record.trace) == before
        checkpoint, kept = run / "checkpoint", run / "checkpoint.previous"
        torn = checkpoint.exists() and kept.exists() and rng.random() < 0.4
        if torn:
            tear(checkpoint, rng)
            counts["injected"] += 1
        if record.metrics["status"] != "completed":
            first = next((c for c in ((kept,) if torn else (checkpoint, kept)) if c.exists()), None)
            begun = read(first)["iteration"] if first else 0
            lost = max(before - begun - (2 if torn else 1) * INTERVAL, 0)
            counts["rows lost beyond the interval"] += lost
            assert lost == 0
            assert finish(folder, "resume", "r") == 0, command.output()
            counts["resumed"] += 1
        found = results(run)
        counts["mismatches"] += found != expected
        assert found == expected
        history = (run / "history.csv").read_text()
        assert ("checkpoint_damaged" in history) == torn
        if record.metrics["status"] != "completed":
            assert not checkpoint.exists(), "a completed run needs no checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize("limit", [700, 3000, 6000] if FULL else [3000])
def test_a_full_disk(tmp_path, limit, counts):
    """RLIMIT_FSIZE stands for it: a write past the limit fails as on a full disk."""
    words = words_for("adam")
    (tmp_path / "whole").mkdir()
    assert finish(tmp_path / "whole", *words) == 0
    expected = results(tmp_path / "whole" / "r")
    code = finish(tmp_path, *words, limits={"RLIMIT_FSIZE": limit})
    counts["injected"] += 1
    assert code in (1, 2)
    if (tmp_path / "r/metrics.json").exists():
        metrics = load_run(tmp_path / "r").metrics
        assert metrics["status"] in ("failed", "running")
        assert metrics["status"] == "running" or metrics["reason"].startswith("storage_failed")
    if (tmp_path / "r/config.yaml").exists():  # below that size nothing can be resumed: the run had not begun
        assert finish(tmp_path, "resume", "r") == 0, (tmp_path / "log").read_text()
        counts["resumed"] += 1
        assert results(tmp_path / "r") == expected


@pytest.mark.slow
def test_ctrl_c_twice(tmp_path, counts):
    command = Command(tmp_path, *words_for("adam"), "optimizer.iterations=5000")
    wait_for(lambda: rows(tmp_path / "r") > 10)
    command.signal(signal.SIGINT)
    time.sleep(0.02)
    command.signal(signal.SIGINT)
    assert command.wait() == 130
    counts["injected"] += 2
    metrics = load_run(tmp_path / "r").metrics
    assert metrics["status"] == "interrupted"
    assert "SIGINT" in metrics["reason"]
    assert "Traceback" not in command.output()
    assert read(tmp_path / "r/checkpoint")["iteration"] >= 10


@pytest.mark.slow
def test_sigterm_checkpoints_at_once(tmp_path, counts):
    """No interval has passed, and still nothing but the iteration under way is lost."""
    words = [*words_for("adam"), "optimizer.iterations=5000", "checkpoint.iterations=0"]
    command = Command(tmp_path, *words)
    wait_for(lambda: rows(tmp_path / "r") > 10)
    command.signal(signal.SIGTERM)
    assert command.wait() == 143
    counts["injected"] += 1
    assert load_run(tmp_path / "r").metrics["status"] == "interrupted"
    assert read(tmp_path / "r/checkpoint")["iteration"] >= rows(tmp_path / "r") - 1


@pytest.mark.slow
def test_memory_exhausted(tmp_path, counts):
    words = [*words_for("adam"), "dataset=gp_sample", "dataset.n_train=12000", "sampler.batch_size=12000"]
    assert finish(tmp_path, *words, limits={"RLIMIT_AS": 3 << 30}) == 1
    counts["injected"] += 1
    assert load_run(tmp_path / "r").metrics["reason"].startswith("out_of_memory"), (tmp_path / "log").read_text()


def test_a_folder_that_becomes_read_only(kfx, monkeypatch, counts):
    import errno
    import os

    from kfx.files import CsvFile

    write_rows = CsvFile.write

    def refuse(self, *given):
        if given and given[0][0] == 3:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return write_rows(self, *given)

    monkeypatch.setattr(CsvFile, "write", refuse)
    code, _, err = kfx(*words_for("sgd"))
    counts["injected"] += 1
    assert code == 1
    assert "storage_failed" in err
    assert load_run("r").metrics["reason"].startswith("storage_failed")


# ---- checkpoints themselves


def interrupted(folder):
    words = [*words_for("adam"), "optimizer.iterations=5000"]
    command = Command(folder, *words)
    wait_for(lambda: (folder / "r/checkpoint.previous").exists())
    command.signal(signal.SIGTERM)
    command.wait()
    return folder / "r"


@pytest.mark.slow
def test_a_foreign_checkpoint_is_one_clear_error(tmp_path, kfx):
    run = interrupted(tmp_path)
    state = read(run / "checkpoint")
    for name in ("checkpoint", "checkpoint.previous"):
        write(run / name, {**state, "identity": "0123456789abcdef"})
    code, _, err = kfx("resume", str(run))
    assert code == 1
    assert "belongs to another run" in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["gone", "cut", "changed"] if FULL else ["cut"])
def test_what_an_ended_fold_left_is_whole_or_the_run_does_not_go_on(tmp_path, damage, counts):
    """An earlier checkpoint, from before that fold ended, or an error: never the kernel without its flow."""
    words = words_for("flow_euler in folds")
    command = Command(tmp_path, *words, "optimizer.iterations=400")
    wait_for(lambda: rows(tmp_path / "r") > 420)
    command.signal(signal.SIGTERM)
    assert command.wait() == 143
    path = tmp_path / "r/flow-0.npz"
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            content[:200] if damage == "cut" else content[:-40] + bytes([content[-40] ^ 1]) + content[-39:]
        )
    assert finish(tmp_path, "resume", "r") == 1
    counts["injected"] += 2
    log = (tmp_path / "log").read_text()
    assert "flow-0.npz is missing or damaged" in log
    assert "Traceback" not in log
    path.write_bytes(content)
    assert finish(tmp_path, "resume", "r") == 0
    counts["resumed"] += 1


def test_no_good_checkpoint_is_one_clear_error(tmp_path, kfx):
    run = interrupted(tmp_path)
    for name in ("checkpoint", "checkpoint.previous"):
        (run / name).write_bytes(b"torn")
    code, _, err = kfx("resume", str(run))
    assert code == 1
    assert "no checkpoint can be read" in err
    assert json.loads((run / "metrics.json").read_text())["status"] == "interrupted"


def test_checkpoints_hold_numbers_text_and_arrays(tmp_path):
    import numpy as np

    state = {"a": [1, 2.5, None, "x", float("inf")], "b": {"c": np.arange(3.0), "d": np.float64(0.1)}, "e": 2**100}
    write(tmp_path / "c", state)
    found = read(tmp_path / "c")
    np.testing.assert_array_equal(found["b"].pop("c"), np.arange(3.0))
    assert found == {"a": [1, 2.5, None, "x", float("inf")], "b": {"d": 0.1}, "e": 2**100}
    write(tmp_path / "c", {"a": 2})
    assert read(tmp_path / "c.previous")["e"] == 2**100


def test_checkpoints_are_never_unpickled(tmp_path):
    import hashlib
    import io

    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, json=np.array([print], dtype=object))
    content = buffer.getvalue()
    header = f"kfx-checkpoint 1 {hashlib.sha256(content).hexdigest()} {len(content)}\n".encode()
    (tmp_path / "c").write_bytes(header + content)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read(tmp_path / "c")
    (tmp_path / "d").write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        read(tmp_path / "d")


def test_resume_of_what_is_not_there_or_done(kfx):
    code, _, err = kfx("resume", "nothing")
    assert (code, "holds no run to resume" in err) == (2, True)
    assert kfx(*words_for("none"))[0] == 0
    code, _, err = kfx("resume", "r")
    assert (code, "is completed" in err) == (2, True)
