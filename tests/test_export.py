"""Finished runs in MLflow's, TensorBoard's and Weights & Biases' own stores, read back by their own readers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import kfx
from kfx.export import finished, to_mlflow, to_tensorboard, to_wandb
from tests.faults.harness import Command

FEW = ("optimizer.iterations=6", "sampler.batch_size=40", "evaluation.batches=2", "evaluation.n_interpolation=[50,100]")
FEW += ("device.precision_check=off",)


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    """A sweep, once for all tests."""
    folder = tmp_path_factory.mktemp("swept") / "s"
    kfx.sweep([*FEW, "seed=0,1", "figures=true", f"hydra.sweep.dir='{folder}'"], progress=False)
    return folder


@pytest.fixture
def runs(swept, in_folder):
    folder = shutil.copytree(swept, in_folder / "s")
    return [kfx.load_run(folder / name) for name in "01"]


def written(tool, place, *paths):
    return list(tool.write(finished.read(paths)[0], str(place), "kfx"))


def test_names_that_mlflow_refuses_are_changed_and_stay_apart():
    nothing = (np.zeros(0),) * 3
    names = ["parameter.lengths.T (°C)", "parameter.lengths.T (°F)", "parameter.lengths.b|c", "parameter.lengths.b_c"]
    found = [name for name, *_ in to_mlflow._named((name, *nothing) for name in names)]
    assert found == [
        *("parameter.lengths.T __C_", "parameter.lengths.T __F_", "parameter.lengths.b_c", "parameter.lengths.b_c-2"),
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::sqlalchemy.exc.SADeprecationWarning")
@pytest.mark.slow
def test_mlflow_has_settings_series_results_and_files(in_folder, runs):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{in_folder / 'store.db'}"
    lines = written(to_mlflow, uri, in_folder / "s")
    assert len(lines) == 2
    assert all("already" in line for line in written(to_mlflow, uri, in_folder / "s"))
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("kfx")
    stored = {run.data.params["seed"]: run for run in client.search_runs([experiment.experiment_id])}
    for run in runs:
        found = stored[str(run.config.seed)]
        assert found.info.status == "FINISHED"
        assert found.data.tags["kfx.identity"] == run.metrics["identity"]
        assert found.data.params["kernel.name"] == "rbf"
        for column, name in (("rho", "batch.rho"), ("parameter.sigma", "parameter.sigma")):
            history = sorted(client.get_metric_history(found.info.run_id, name), key=lambda metric: metric.step)
            assert np.array_equal([metric.value for metric in history], run.trace[column])
        assert "rho" not in found.data.metrics, "a series is shown by its last value"
        assert found.data.metrics["held_out.rho.trained"] == run.metrics["rho"]["final"]
        rows = [r for r in run.metrics["evaluation"] if r["kernel"] == "trained" and r["metric"] == "mse"]
        assert found.data.metrics["trained.mse"] == next(r["mean"] for r in rows if r["n_interpolation"] == 100)
        names = {file.path for file in client.list_artifacts(found.info.run_id)}
        assert {"config.yaml", "trace.csv", "metrics.json", "figures"} <= names
        assert "checkpoint" not in names


READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
scalars = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
print(json.dumps([scalars, events.Tags()["images"], events.Tags()["tensors"]]))
"""


@pytest.mark.slow
def test_tensorboard_reads_what_was_recorded(in_folder, runs):
    """In processes of their own: TensorFlow, where it is here too, takes hold of the standard streams."""
    pytest.importorskip("tensorboard")
    assert exported(in_folder, "tensorboard", "s", "--to", "tb").count("tb/kfx/s/") == 2
    assert "s/0: is there already" in exported(in_folder, "tensorboard", "s/0", "--to", "tb")
    reader = [sys.executable, "-c", READ, str(next((in_folder / "tb/kfx/s").glob("0-*-completed")))]
    done = subprocess.run(reader, capture_output=True, text=True, check=True)
    scalars, images, tensors = json.loads(done.stdout.splitlines()[-1])
    run = kfx.load_run("s/0")
    steps, values = zip(*scalars["batch.rho"], strict=True)
    assert list(steps) == run.trace["iteration"].tolist()
    assert np.allclose(values, run.trace["rho"], rtol=1e-6), "in float32, as it keeps them"
    assert [step for step, _ in scalars["evaluation/trained/mse"]] == [50, 100]
    assert "figures/rho" in images
    assert "config/text_summary" in tensors


def exported(folder, *words):
    command = Command(folder, "export", *words)
    assert command.wait() == 0, command.output()
    return command.output()


@pytest.mark.slow
def test_wandb_writes_offline_runs_by_identity(in_folder, runs):
    """In a process of its own: it takes hold of the standard streams."""
    pytest.importorskip("wandb")
    for said in ("s/0: ", "s/0: is there already"):
        assert said in exported(in_folder, "wandb", "s/0", "--to", "w")
    (path,) = (in_folder / "w/wandb").glob("offline-run-*/run-*.wandb")
    content = path.read_bytes()
    for value in kfx.load_run("s/0").trace["rho"]:
        assert repr(float(value)).encode() in content


# ---- interrupted exports, and records of others


def interrupted():
    """Raises at its first call, as Ctrl-C would; does nothing later."""
    calls = iter([KeyboardInterrupt])

    def call(*args, **kwargs):
        for error in calls:
            raise error

    return call


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::sqlalchemy.exc.SADeprecationWarning")
@pytest.mark.slow
def test_mlflow_writes_an_interrupted_entry_anew(in_folder, runs, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    uri, monkey = f"sqlite:///{in_folder / 'store.db'}", interrupted()
    monkeypatch.setattr("mlflow.MlflowClient.log_artifact", monkey)
    with pytest.raises(KeyboardInterrupt):
        written(to_mlflow, uri, in_folder / "s/0")
    (line,) = written(to_mlflow, uri, in_folder / "s/0")
    assert line.startswith("s/0: run ")
    (line,) = written(to_mlflow, uri, in_folder / "s/0")
    assert line == "s/0: is there already"
    client = mlflow.MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("kfx").experiment_id])
    assert len(client.get_metric_history(found.info.run_id, "batch.rho")) == len(runs[0].trace)


def test_tensorboard_writes_an_interrupted_folder_anew(in_folder, runs, monkeypatch):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    whole, monkey = SummaryWriter.add_text, interrupted()
    monkeypatch.setattr(SummaryWriter, "add_text", lambda *args: (monkey(), whole(*args)))
    with pytest.raises(KeyboardInterrupt):
        written(to_tensorboard, in_folder / "tb", in_folder / "s/0")
    for said in (": tb/", "is there already"):
        (line,) = written(to_tensorboard, "tb", in_folder / "s/0")
        assert said in line
    (folder,) = (in_folder / "tb/kfx/s").iterdir()
    (events,) = folder.glob("events.*")
    assert events.read_bytes().count(b"batch.rho") == len(runs[0].trace)


def test_tensorboard_tells_several_values_of_lambda_apart(in_folder, monkeypatch):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    words = [*FEW, "evaluation.regularization.value=[1e-4,1]", "hydra.run.dir=several"]
    run, added = kfx.run(words, progress=False), []
    monkeypatch.setattr(
        SummaryWriter, "add_scalar", lambda self, tag, value, step, **_: added.append((tag, step, value))
    )
    written(to_tensorboard, in_folder / "tb", in_folder / "several")
    points = [(tag, step) for tag, step, _ in added]
    assert len(set(points)) == len(points), "one value at a step"
    for row in run.metrics["evaluation"]:
        tag = f"evaluation/{row['kernel']}/{row['metric']}/regularization {row['configured_regularization']:g}"
        assert row["mean"] is None or (tag, row["n_interpolation"], row["mean"]) in added


def test_wandb_writes_an_interrupted_run_anew(in_folder, runs, monkeypatch):
    log = interrupted()

    def init(dir, id, **settings):
        own = Path(dir) / "wandb" / f"offline-run-now-{id}"
        own.mkdir(parents=True)
        (own / f"run-{id}.wandb").touch()
        return SimpleNamespace(log=log, summary={}, finish=lambda exit_code: None)

    theirs = SimpleNamespace(init=init, Settings=dict, Image=str, errors=SimpleNamespace(Error=OSError))
    monkeypatch.setitem(sys.modules, "wandb", theirs)
    with pytest.raises(KeyboardInterrupt):
        written(to_wandb, "w", in_folder / "s/0")
    for said in (runs[0].metrics["identity"], "is there already"):
        (line,) = written(to_wandb, "w", in_folder / "s/0")
        assert said in line
    (folder,) = (in_folder / "w/wandb").iterdir()
    assert folder.name == f"offline-run-now-{runs[0].metrics['identity']}-completed"


def test_no_link_out_of_a_record_is_copied(in_folder, runs):
    (in_folder / "private").mkdir()
    (in_folder / "private/key").write_text("secret")
    shutil.copy(next((in_folder / "s/0/figures").glob("*.png")), in_folder / "private/p.png")
    (in_folder / "s/0/notes.txt").symlink_to(in_folder / "private/key")
    (in_folder / "s/0/figures/p.png").symlink_to("../../../private/p.png")
    (in_folder / "s/0/folder").symlink_to(in_folder / "private")
    (in_folder / "s/0/own.csv").symlink_to("trace.csv")
    (only,) = finished.read([in_folder / "s/0"])[0]
    names = {path.name for path in only.files()}
    assert {"trace.csv", "own.csv", "config.yaml", "rho.png"} <= names
    assert not names & {"notes.txt", "key", "p.png"}
    assert "p.png" not in {path.name for path in only.pictures()}


def test_an_identity_that_is_a_path_is_none(in_folder, runs):
    path = in_folder / "s/1/metrics.json"
    path.write_text(path.read_text().replace(runs[1].metrics["identity"], "../../../etc"))
    (found,), (line,) = finished.read([in_folder / "s"])
    assert found.identity == runs[0].metrics["identity"]
    assert "its identity is no 16 hexadecimal digits" in line


@pytest.mark.slow
def test_the_command_says_where(kfx, runs, monkeypatch):
    code, _, err = kfx("export", "mlflow", "nothing")
    assert code == 2
    assert "holds no run that has ended" in err
    for tool, module in (("mlflow", "mlflow"), ("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")):
        monkeypatch.setitem(sys.modules, module, None)
        code, _, err = kfx("export", tool, "s/0")
        assert (code, err.count("\n")) == (2, 1)
        assert f"pip install 'kernel-flows[{tool}]'" in err


def test_runs_that_go_on_are_left_out(in_folder, runs):
    path = in_folder / "s/1/metrics.json"
    path.write_text(path.read_text().replace('"completed"', '"running"'))
    found, left_out = finished.read([in_folder / "s"])
    assert [each.name for each in found] == ["s/0"]
    assert left_out == [f"{in_folder / 's/1'}: has not ended"]
