"""Commands as a user types them, by what they print and leave behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

import kfx as package
from kfx import load_run
from kfx.kernels import RBF
from kfx.numerics import linear_algebra
from kfx.plots import draw
from kfx.record.columns import untimed
from tests.words import DRAWN, SMALL


def command(*words):
    return [sys.executable, "-m", "kfx", *words]


def test_help_answers_at_once():
    subprocess.run(command("--help"), check=True, capture_output=True)
    times = []
    for _ in range(3):
        start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        done = subprocess.run(command("--help"), check=True, capture_output=True, text=True)
        times.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - start)
    assert min(times) < 0.5, "seconds of a core, whatever else runs beside"
    for word in ("run", "list", "data", "gram"):
        assert f"\n    {word} " in done.stdout


def test_version_and_run_help(kfx):
    assert kfx("--version")[1] == f"kfx {package.__version__}\n"
    code, out, _ = kfx("run", "--help")
    assert code == 0
    assert "usage: kfx run" in out
    assert "rational_quadratic" in out
    assert "kfx list experiment" in out


def test_list(kfx):
    assert "Gaussian kernel" in kfx("list", "kernel")[1]
    names = kfx("list", "experiment", "--names")[1].split()
    assert {"smoke/rbf_adam", "first_light/mnist_rbf"} <= set(names)


def test_cfg_job_prints_and_stops(kfx, in_folder):
    code, out, _ = kfx("run", "kernel.sigma=2.5", "--cfg", "job")
    assert code == 0
    assert yaml.safe_load(out)["kernel"]["sigma"] == 2.5
    assert not (in_folder / "runs").exists()


def test_a_run_leaves_its_whole_record(kfx, in_folder):
    asked = [
        "figures=true",
        "device.precision_check=warn",
        "evaluation.n_interpolation=[20,60]",
        "evaluation.repeats=2",
    ]
    code, out, err = kfx("run", *DRAWN, *asked, "hydra.run.dir=r")
    assert code == 0
    assert "results     r\n" in out
    assert "kernel      sigma 1 → " in out
    assert "held-out batches" in out
    assert err.splitlines()[-1].startswith("evaluation "), "progress is no result"
    assert {p.name for p in (in_folder / "r").iterdir()} == {
        "config.yaml",
        "overrides.yaml",
        "environment.json",
        "trace.csv",
        "evaluation.csv",
        "metrics.json",
        "held_out.csv",
        "predictions.csv",
        "precision.json",
        "history.csv",
        "figures",
        ".lock",
    }
    assert {p.name for p in (in_folder / "r/figures").iterdir()} == {
        "rho.png",
        "parameters.png",
        "evaluation.png",
    }
    run = load_run("r")
    assert list(run.trace.columns[:9]) == [
        "iteration",
        "rho",
        "objective",
        "told",
        "regularization",
        "seconds",
        "kernel_evaluations",
        "jitter",
        "event",
    ]
    assert list(run.evaluation.columns) == [
        "kernel",
        "n_interpolation",
        "repeat",
        "regularization",
        "metric",
        "value",
        "configured_regularization",
    ]
    assert len(run.trace) == 6
    assert run.trace["kernel_evaluations"].tolist() == [1, 2, 3, 4, 5, 6]
    assert run.trace["seconds"].is_monotonic_increasing
    assert set(run.evaluation["metric"]) == {"accuracy", "mse", "mae", "effective_regularization", "jitter"}
    assert len(run.evaluation) == 2 * 2 * 2 * 5
    assert run.config.sampler.batch_size == 30
    assert run.metrics["status"] == "completed"
    assert run.metrics["rho_batch"]["first"] == run.trace["rho"].iloc[0]
    assert run.metrics["parameters"]["initial"] == {"sigma": 1.0}
    assert isinstance(run.kernel, RBF)
    assert run.kernel.parameters == run.metrics["parameters"]["final"]
    environment = json.loads((in_folder / "r/environment.json").read_text())
    assert {"packages", "git_commit", "git_dirty", "host", "threads", "precision_switches", "seed"} <= set(environment)
    assert yaml.safe_load((in_folder / "r/overrides.yaml").read_text())[0] == SMALL[0]


def test_a_directory_takes_one_run(kfx):
    assert kfx("run", *SMALL, "hydra.run.dir=r")[0] == 0
    code, _, err = kfx("run", *SMALL, "hydra.run.dir=r")
    assert code == 2
    assert "hydra.run.dir=r: holds a run already" in err


def test_default_directories(kfx, in_folder):
    kfx("run", *SMALL)
    kfx("run", "optimizer.iterations=200", "--smoke", "+experiment=khalid/three_bumps_rbf")
    assert len(list((in_folder / "runs/digits-rbf-adam").iterdir())) == 1
    assert len(list((in_folder / "runs/khalid/three_bumps_rbf").iterdir())) == 1


def test_multirun_leaves_a_record_each(kfx, in_folder):
    code, _, _ = kfx("run", "-m", *SMALL, "optimizer=none,adam", "seed=0,1", "hydra.sweep.dir=s")
    assert code == 0
    runs = [load_run(in_folder / "s" / str(i)) for i in range(4)]
    assert [r.metrics["status"] for r in runs] == ["completed"] * 4
    assert {(r.config.optimizer.name, r.config.seed) for r in runs} == {
        (o, s) for o in ("none", "adam") for s in (0, 1)
    }


@pytest.mark.parametrize(
    "optimizer", ["adam", *(pytest.param(name, marks=pytest.mark.slow) for name in ("none", "sgd", "nesterov"))]
)
def test_same_seed_same_trace(kfx, optimizer):
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        kfx("run", *SMALL, f"optimizer={optimizer}", f"seed={seed}", f"hydra.run.dir={folder}")
    first, second, other = (untimed(load_run(f).trace) for f in "abc")
    assert first.equals(second)
    assert not first.equals(other)
    assert load_run("a").evaluation.equals(load_run("b").evaluation)


def test_one_dimensional_data_get_their_curve(kfx, in_folder):
    words = ["+experiment=khalid/three_bumps_rbf", "optimizer=none", "optimizer.iterations=1", "hydra.run.dir=r"]
    kfx("run", *words, "figures=true")
    run = load_run("r")
    mse = run.evaluation.query("metric == 'mse' and kernel == 'initial'")["value"].iloc[0]
    assert mse == pytest.approx(6.870, abs=5e-4)  # published 6.865
    assert (in_folder / "r/figures/curve.png").read_bytes().startswith(b"\x89PNG")


def test_evaluation_extras(kfx):
    kfx(
        "run",
        *SMALL,
        "kernel.initial=random",
        "evaluation.n_interpolation=[40]",
        "evaluation.random_kernels=2",
        "evaluation.balanced=true",
        "evaluation.posterior_variance=true",
        "evaluation.save_predictions=true",
        "evaluation.regularization.value=[1e-4,1e-2]",
        "evaluation.regularization.scale=absolute",
        "hydra.run.dir=r",
    )
    run = load_run("r")
    assert set(run.evaluation["kernel"]) == {"initial", "trained", "random-0", "random-1"}
    assert set(run.evaluation["regularization"]) == {1e-4, 1e-2}
    effective = run.evaluation.query("metric == 'effective_regularization'")
    np.testing.assert_array_equal(effective["value"], effective["regularization"])
    assert (run.evaluation.query("metric == 'mean_posterior_variance'")["value"] > 0).all()
    with np.load("r/predictions.npz") as arrays:
        assert arrays["trained/40/0/0.01/mean"].shape == (60, 10)
        assert arrays["trained/40/0/0.01/variance"].shape == (60,)
    assert run.metrics["parameters"]["initial"]["sigma"] != 1.0


def test_a_failed_run_says_why(kfx, in_folder, monkeypatch):
    from kfx.outcomes import Event, NumericalError

    def fail(*_):
        raise NumericalError(Event.NOT_POSITIVE_DEFINITE, "scripted")

    monkeypatch.setattr(linear_algebra, "cholesky", fail)
    code, _, err = kfx("run", *SMALL, "figures=true", "hydra.run.dir=r")
    assert code == 1
    run = load_run("r")
    assert run.metrics["status"] == "failed"
    assert run.metrics["reason"].startswith("not_positive_definite: RBF(sigma=")
    assert "failed: not_positive_definite" in err
    assert run.trace["event"].tolist() == ["not_positive_definite;reinitialized"] * 3 + ["not_positive_definite"]
    assert (in_folder / "r/figures/rho.png").exists()


def test_interruption_keeps_the_record(kfx, monkeypatch):
    from kfx.sampling.samplers import Sampler

    calls = iter(range(100))
    draw_batch = Sampler.draw

    def interrupted(self, rng, iteration):
        if next(calls) == 4:
            raise KeyboardInterrupt
        return draw_batch(self, rng, iteration)

    monkeypatch.setattr(Sampler, "draw", interrupted)
    code, _, err = kfx("run", *SMALL, "hydra.run.dir=r")
    assert code == 130
    assert "interrupted" in err
    run = load_run("r")
    assert run.metrics["status"] == "interrupted"
    assert len(run.trace) == 4


@pytest.mark.parametrize("killed", [False, True])
def test_seconds_of_a_resumed_run_are_those_of_all_its_processes(kfx, monkeypatch, killed):
    from kfx.sampling.samplers import Sampler

    calls, draw_batch = iter(range(100)), Sampler.draw

    def slow(self, rng, iteration):
        time.sleep(0.25)
        if next(calls) == 4:
            raise KeyboardInterrupt
        return draw_batch(self, rng, iteration)

    monkeypatch.setattr(Sampler, "draw", slow)
    assert kfx("run", *SMALL, "checkpoint.iterations=1", "hydra.run.dir=r")[0] == 130
    before = load_run("r").metrics
    assert before["timing"]["fit_seconds"] > 1
    if killed:  # it had no time to write them
        path = Path("r/metrics.json")
        path.write_text(json.dumps({k: v for k, v in before.items() if k not in ("timing", "memory", "reason")}))
    monkeypatch.setattr(Sampler, "draw", draw_batch)
    assert kfx("resume", "r")[0] == 0
    run = load_run("r")
    assert run.metrics["timing"]["fit_seconds"] >= run.trace["seconds"].iloc[-1] > 1
    assert all(run.metrics["memory"][stage] >= peak for stage, peak in before["memory"].items()) or killed


@pytest.mark.slow
def test_a_signal_that_a_library_turns_into_its_own_error_is_an_interruption(kfx, monkeypatch):
    """As NumPy's savez, whose archive refuses to close amid a write, with a ValueError."""
    from kfx.sampling.samplers import Sampler

    def stopped(self, rng, iteration):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            raise ValueError("an open writing handle")

    monkeypatch.setattr(Sampler, "draw", stopped)
    code, _, _ = kfx("run", *SMALL, "hydra.run.dir=r")
    assert code == 143
    assert load_run("r").metrics["status"] == "interrupted"


def test_memory_exhausted_is_a_reason(kfx, monkeypatch):
    monkeypatch.setattr(linear_algebra, "cholesky", lambda *_: (_ for _ in ()).throw(MemoryError()))
    code, _, _ = kfx("run", *SMALL, "hydra.run.dir=r")
    assert code == 1
    assert load_run("r").metrics["reason"].startswith("out_of_memory")


@pytest.mark.slow
def test_sigkill_leaves_a_trace_that_reads(in_folder):
    words = ["run", *SMALL, "optimizer.iterations=100000", "hydra.run.dir=r"]
    process = subprocess.Popen(command(*words), stderr=subprocess.DEVNULL, env={**os.environ})
    trace = in_folder / "r/trace.csv"
    deadline = time.monotonic() + 60
    while not (trace.exists() and trace.read_bytes().count(b"\n") > 20):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    rows = trace.read_text().count("\n") - 1
    run = load_run("r")
    assert len(run.trace) == rows
    assert run.trace["iteration"].tolist() == list(range(rows))
    assert run.metrics["status"] == "running"
    assert {p.stem for p in draw(in_folder / "r")} == {"rho", "parameters"}
    with trace.open("a") as stream:
        stream.write("17,0.")
    assert len(load_run("r").trace) == rows, "half a row is dropped"


@pytest.mark.slow
def test_sigint_from_outside(in_folder):
    words = ["run", *SMALL, "optimizer.iterations=100000", "hydra.run.dir=r"]
    process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True)
    trace = in_folder / "r/trace.csv"
    deadline = time.monotonic() + 60
    while not (trace.exists() and trace.read_bytes().count(b"\n") > 20):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.count("interrupted") == 1
    assert load_run("r").metrics["status"] == "interrupted"


def test_gram_in_blocks(kfx, in_folder):
    words = ["dataset.n_train=50", "dataset.n_test=20", "sampler.batch_size=10", "kernel.sigma=2"]
    code, out, _ = kfx("gram", *words, "--block", "13", "--test", "--output", "g")
    assert code == 0
    assert out.split() == ["g/gram.npy", "g/gram_test.npy"]
    gram, cross = np.load(in_folder / "g/gram.npy"), np.load(in_folder / "g/gram_test.npy")
    from kfx.data import preprocess
    from kfx.experiment.compose import load
    from kfx.numerics.streams import Streams

    data = preprocess((d := load(words).dataset).build(Streams(0)["data"]), d.preprocess)
    np.testing.assert_allclose(gram, RBF(2.0).gram(data.x_train), rtol=1e-12)
    np.testing.assert_allclose(cross, RBF(2.0).gram(data.x_test, data.x_train), rtol=1e-12)
    np.testing.assert_allclose(gram, gram.T, rtol=1e-14)
