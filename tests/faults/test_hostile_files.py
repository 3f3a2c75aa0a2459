"""Records and data files that are damaged, hostile or extreme."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import pickle
import warnings

import numpy as np
import pytest
import torch

from kfx import load_run
from kfx.data.images import read_cifar_batch
from kfx.flows.layers import checked
from kfx.kernels import RBF, Polynomial
from kfx.objectives import rho
from kfx.outcomes import DataError, Event, NumericalError
from kfx.sampling.samplers import Sampler
from tests.faults.words import SMALL


def interrupt_at(monkeypatch, iteration):
    """Ctrl-C when the batch of this iteration is drawn."""
    calls, draw_batch = iter(range(1000)), Sampler.draw

    def interrupted(self, rng, iteration_of_fit=0):
        if next(calls) == iteration:
            raise KeyboardInterrupt
        return draw_batch(self, rng, iteration_of_fit)

    monkeypatch.setattr(Sampler, "draw", interrupted)


# ---- code from a config


@pytest.mark.parametrize("name", ["a\\b", "end\\", "it's", "a b", "a\\'b"])
def test_any_name_of_a_folder(kfx, in_folder, name):
    escaped = name.replace("\\", "\\\\").replace("'", "\\'") if name.endswith("\\") or "'" in name else name
    assert kfx("run", *SMALL, "optimizer.iterations=1", f"hydra.run.dir='{escaped}'")[0] == 0
    assert load_run(name).metrics["status"] == "completed"


# ---- records


@pytest.mark.parametrize("name", ["metrics.json", "config.yaml", "trace.csv", "evaluation.csv"])
@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe", b"a,b\n1,2,3\n4\n"])
def test_a_damaged_record_is_a_line_and_costs_others_nothing(kfx, in_folder, record, name, content):
    import shutil

    shutil.copytree(record, in_folder / "d")
    (in_folder / "d" / name).write_bytes(content)
    code, out, err = kfx("compare", "r", "d", "--mix")
    assert (code, "rbf" in out) == (0, True), err
    for words in (["rerun", "d", "--output", "again"], ["resume", "d"], ["animate", "d"]):
        code, _, err = kfx(*words)
        assert "Traceback" not in err
        assert code in (1, 2)
        shutil.rmtree("again", ignore_errors=True)


@pytest.mark.parametrize(
    ("name", "old", "new", "shown"),
    [
        ("evaluation.csv", ",accuracy,", ",precision,", "accuracy"),
        ("trace.csv", ",0.0,,", ",0.0,reinitialized,", "event"),
        ("evaluation.csv", "trained,60", "trained,61", "n_interpolation"),
    ],
)
def test_rerun_compares_everything(kfx, record, name, old, new, shown):
    text = (record / name).read_text()
    assert old in text
    (record / name).write_text(text.replace(old, new, 1))
    code, out, _ = kfx("rerun", "r", "--output", "again")
    assert (code, out.splitlines()[-1].startswith("DIFFERENT")) == (1, True)
    assert shown in out


def test_rerun_knows_nan(kfx, record):
    table = (record / "trace.csv").read_text().splitlines()
    cells = table[3].split(",")
    (record / "trace.csv").write_text("\n".join([*table[:3], ",".join([cells[0], "nan", *cells[2:]]), *table[4:], ""]))
    code, out, _ = kfx("rerun", "r", "--output", "again")
    assert (code, "DIFFERENT: trace, rho" in out) == (1, True)


def test_rerun_compares_the_fitted_parameters(kfx, record):
    metrics = json.loads((record / "metrics.json").read_text())
    metrics["parameters"]["final"]["sigma"] = 99.0
    (record / "metrics.json").write_text(json.dumps(metrics))
    code, out, _ = kfx("rerun", "r", "--output", "again")
    assert (code, "DIFFERENT: parameters.final.sigma: 99.0 and" in out) == (1, True)


def test_the_kernel_of_a_flow_is_never_the_one_without_it(kfx, in_folder):
    from kfx.outcomes import RecordError

    assert kfx("run", *SMALL, "optimizer=flow_euler", "hydra.run.dir=f")[0] == 0
    content = (in_folder / "f/flow-0.npz").read_bytes()
    (in_folder / "f/flow-0.npz").write_bytes(content[:100])
    with pytest.raises(RecordError, match="damaged"):
        _ = load_run("f").kernel
    (in_folder / "f/flow-0.npz").unlink()
    with pytest.raises(RecordError, match="is missing"):
        _ = load_run("f").kernel


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"), [("environment.json", b"{}"), ("trace.csv", None), ("config.yaml", b"{}")]
)
def test_a_damaged_file_leaves_an_interrupted_run_interrupted(kfx, in_folder, monkeypatch, name, content):
    interrupt_at(monkeypatch, 4)
    assert kfx("run", *SMALL, "hydra.run.dir=r")[0] == 130
    path = in_folder / "r" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-30] + b"\xff" * 30 if content is None else content)
    code, _, err = kfx("resume", "r")
    assert "Traceback" not in err
    if name == "environment.json":
        assert code == 0
    else:
        assert code in (1, 2)
        assert json.loads((in_folder / "r/metrics.json").read_text())["status"] == "interrupted"
        path.write_bytes(whole)
        assert kfx("resume", "r")[0] == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # layers of a run that is interrupted
@pytest.mark.parametrize("name", ["trace.csv", "layers-0.bin", "flow.csv"])
def test_a_run_does_not_go_on_from_rows_or_layers_that_were_changed(kfx, in_folder, monkeypatch, name):
    interrupt_at(monkeypatch, 4)
    words = ["optimizer=flow_euler", "flow.record_layers=true", "follow.every=1", "checkpoint.iterations=0"]
    assert kfx("run", *SMALL, *words, "hydra.run.dir=r")[0] == 130
    path = in_folder / "r" / name
    whole = path.read_bytes()
    at = len(whole) // 4 if name == "layers-0.bin" else whole.index(b".", whole.index(b"\n")) + 1
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    code, _, err = kfx("resume", "r")
    assert (code, f"{name} is missing or damaged" in err, len(err.splitlines())) == (1, True, 1), err
    path.write_bytes(whole)
    assert kfx("resume", "r")[0] == 0


def test_plot_of_a_damaged_record_is_a_line(kfx, record):
    (record / "precision.json").write_text("x")
    code, _, err = kfx("plot", "r")
    assert (code, err.count("r/precision.json: is not a precision.json"), "Traceback" in err) == (1, 1, False)


# ---- extreme numbers


@pytest.mark.parametrize("scale", [1e-150, 1e150, 1e-300])
def test_rho_and_its_cotangent_do_not_know_the_scale_of_the_targets(scale):
    x, y = torch.linspace(0, 3, 12, dtype=torch.float64)[:, None], torch.arange(12.0, dtype=torch.float64).sin()
    gram = RBF(0.7).gram(x)
    value, cotangent = rho(gram, y, 6, 1e-3)
    extreme, other = rho(gram, y * scale, 6, 1e-3)
    assert extreme == pytest.approx(value, rel=1e-9)
    torch.testing.assert_close(other, cotangent, rtol=1e-9, atol=1e-12)


def test_an_enormous_lambda():
    y = torch.arange(12.0, dtype=torch.float64).sin()
    value, cotangent = rho(RBF(0.7).gram(np.linspace(0, 3, 12)[:, None]), y, 6, 1e300)
    assert value == pytest.approx(float(y[6:].square().sum() / y.square().sum()), rel=1e-9)
    assert np.isfinite(cotangent).all()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["kernel.sigma=1e300", "optimizer=none"], "diverged"),
        (["kernel.sigma=1e-300", "optimizer=none"], "diverged"),
        (["dataset=gp_sample", "dataset.noise=1e160", "objective=nll", "optimizer=bayesian"], "diverged"),
        (["dataset=gp_sample", "dataset.noise=1e200"], "diverged"),
    ],
)
def test_extreme_numbers_are_a_reason(kfx, words, reason):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        code, _, err = kfx("run", *SMALL, *words, "hydra.run.dir=r")
    assert (code, "Traceback" in err) == (1, False)
    assert load_run("r").metrics["reason"].startswith(reason)


def test_a_gram_matrix_that_is_not_finite_is_no_file(kfx, in_folder):
    words = ["dataset.n_train=60", "kernel=polynomial", "kernel.degree=1000", "kernel.gamma=1e10"]
    code, _, err = kfx("gram", *words, "--output", "g")
    assert (code, "not finite" in err) == (1, True)
    assert not (in_folder / "g/gram.npy").exists()


def test_the_last_good_positions_can_be_evaluated():
    near, far = torch.ones(4, 2, dtype=torch.float64), torch.full((4, 2), 1e160, dtype=torch.float64)
    assert checked(near, RBF()) is near
    with pytest.raises(NumericalError, match="too far out"):
        checked(far, RBF())
    with pytest.raises(NumericalError, match="too far out"):
        checked(near * 1e60, Polynomial(8))


# ---- bombs


def test_labels_that_nest_through_the_memo(tmp_path):
    labels: list = [0] * 10
    for _ in range(60):
        labels = [labels, labels]
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": b"", "labels": labels}))
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match="no plain list"):
        read_cifar_batch(path)


def test_a_data_file_that_never_ends(kfx, in_folder):
    folder = in_folder / "cache/mnist"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "train-images-idx3-ubyte.gz")
    (folder / "train-labels-idx1-ubyte.gz").symlink_to("/dev/zero")
    code, _, err = kfx("run", "dataset=mnist", "evaluation.n_interpolation=[50]")
    assert (code, "is no regular file" in err) == (2, True)


# ---- other threads, or other packages


def test_a_resumed_run_says_that_its_threads_have_changed(kfx, in_folder, monkeypatch):
    interrupt_at(monkeypatch, 3)
    assert kfx("run", *SMALL, "device.threads=1", "hydra.run.dir=r")[0] == 130
    config = (in_folder / "r/config.yaml").read_text()
    (in_folder / "r/config.yaml").write_text(config.replace("threads: 1", "threads: 2"))
    code, _, err = kfx("resume", "r")
    assert code == 0
    assert "kfx: warning: threads 1 → 2" in err
    kept = json.loads((in_folder / "r/environment.json").read_text())
    assert (kept["threads"], [each["threads"] for each in kept["earlier"]]) == (2, [1])
    assert "environment_changed" in (in_folder / "r/history.csv").read_text()


def test_a_run_that_goes_on_with_another_torch_says_so(kfx, in_folder, monkeypatch):
    def as_if_with(version):
        recorded = json.loads((in_folder / "r/environment.json").read_text())
        packages = recorded["packages"] | {"torch": version}
        (in_folder / "r/environment.json").write_text(json.dumps(recorded | {"packages": packages}))

    interrupt_at(monkeypatch, 2)
    assert kfx("run", *SMALL, "hydra.run.dir=r")[0] == 130
    as_if_with("1.0")
    interrupt_at(monkeypatch, 1)
    assert kfx("resume", "r")[0] == 130
    code, out, err = kfx("resume", "r")  # now nothing changes any more
    here, advice = importlib.metadata.version("torch"), Event.ENVIRONMENT_CHANGED.advice
    text = f"torch 1.0 → {here} in the course of the run: {advice}"
    assert (code, "may differ" in text, "kfx rerun RUN" in text) == (0, True, True)
    assert f"kfx: warning: {text}\n" in err
    assert [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("note ")] == [text]
    assert load_run("r").metrics["remarks"] == [text]
    assert (in_folder / "r/history.csv").read_text().count("environment_changed") == 2
    kept = json.loads((in_folder / "r/environment.json").read_text())
    assert [each["packages"]["torch"] for each in (*kept["earlier"], kept)] == ["1.0", here]

    as_if_with("0.9")
    _, _, err = kfx("run", *SMALL, "hydra.run.dir=r", "resume=true")
    assert err == f"kfx: completed already: r; torch 1.0 → 0.9 → {here} since it began: {advice}\n"
    code, _, err = kfx("rerun", "r", "--output", "again")
    assert code == 0
    assert f"kfx: warning: r: torch 1.0 → 0.9 → {here} since it began: its last digits may differ\n" in err


def test_streams_that_are_closed_stay_harmless():
    from kfx.screen import terminal

    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    assert terminal._Unfailing(closed).write("x\n") == 2
