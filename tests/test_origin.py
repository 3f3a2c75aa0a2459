"""A record whose config, data or files have changed since its run gives no number."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

import kfx
from kfx import load_run
from kfx.export import finished
from kfx.outcomes import ChangedError, ConfigError, RecordError
from kfx.papers.tables import measure

SMALL = ("sampler.batch_size=20", "optimizer.iterations=2", "figures=false", "device.precision_check=off")
TABLE = ("dataset=table", "dataset.target=y", *SMALL)
KINDS = {
    "exact": (*TABLE, "dataset.preprocess=[normalize]"),
    "centres": (*TABLE, "optimizer=none", "evaluation.solver=nystrom", "evaluation.centres=10"),
    "flow": (*TABLE, "kernel=rbf", "optimizer=flow_euler", "flow.record_layers=true", "sampler.batch_size=10"),
    "network": ("dataset=digits", "dataset.n_train=40", "dataset.n_test=10", "kernel=network_features", *SMALL),
}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A run of each kind in its folder, made once and when first asked for; t.csv is the table."""
    root, runs = tmp_path_factory.mktemp("origin"), {}
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{np.sin(a) + b:.6f}" for a, b in rng.normal(size=(40, 2))]
    (root / "t.csv").write_text("\n".join(["a,b,y", *rows, ""]))

    def one(kind):
        if kind not in runs:
            own = [f"dataset.path={root / 't.csv'}"] if "dataset=table" in KINDS[kind] else []
            runs[kind] = kfx.run([*KINDS[kind], *own, f"hydra.run.dir={root / kind}"], progress=False).directory
        return runs[kind]

    return one


@pytest.fixture
def record(made, in_folder):
    """Copies a run of a kind into the working folder, its table beside it."""

    def copied(kind):
        shutil.copytree(made(kind), in_folder / "r")
        shutil.copy(made("exact").parent / "t.csv", in_folder / "t.csv")
        return in_folder / "r"

    return copied


def in_config(old, new):
    def edit(record):
        path = record / "config.yaml"
        text = path.read_text()
        assert text.count(old) >= 1
        path.write_text(text.replace(old, new, 1))

    return edit


def in_json(name, change):
    def edit(record):
        content = json.loads((record / name).read_text())
        change(content)
        (record / name).write_text(json.dumps(content))

    return edit


def flipped(name):
    """Flip the last bit of the byte in the middle of a file."""

    def edit(record):
        content = bytearray((record / name).read_bytes())
        content[len(content) // 2] ^= 1
        (record / name).write_bytes(content)

    return edit


def gone(name):
    return lambda record: (record / name).unlink()


EDITS = {
    "seed": ("exact", in_config("seed: 0", "seed: 1")),
    "preprocess": ("exact", in_config("- normalize", "- zca")),
    "targets": ("exact", in_config("targets: standardized", "targets: centered")),
    "kernel": ("exact", in_config("roughness: 1.0", "roughness: 2.0")),
    "parameters": ("exact", in_json("metrics.json", lambda m: m["parameters"]["final"].update(sigma=3.0))),
    "identity": ("exact", in_json("metrics.json", lambda m: m.update(identity="0" * 16))),
    "status": ("exact", in_json("metrics.json", lambda m: m.update(n_train=7))),
    "data checksums": ("exact", in_json("environment.json", lambda e: e["data_sha256"].update({"t.csv": "0" * 64}))),
    "version": ("exact", in_json("environment.json", lambda e: e.update(kfx="0.0.1"))),
    "no environment": ("exact", gone("environment.json")),
    "no config": ("exact", gone("config.yaml")),
    "evaluation": ("exact", flipped("evaluation.csv")),
    "trace": ("exact", flipped("trace.csv")),
    "no evaluation": ("exact", gone("evaluation.csv")),
    "solution": ("centres", flipped("solution.npz")),
    "centres": ("centres", in_config("centres: 10", "centres: 11")),
    "no solution": ("centres", gone("solution.npz")),
    "positions": ("flow", flipped("flow-0.npz")),
    "layers": ("flow", flipped("layers-0.bin")),
    "no layers": ("flow", gone("layers-0.bin")),
    "weights": ("network", flipped("parameters-final.npz")),
}
USES = {
    "kernel": lambda record: load_run(record).kernel,
    "predict": lambda record: load_run(record).predict(np.zeros((2, 2))),
    "estimator": lambda record: load_run(record).estimator(),
    "table of measured numbers": lambda record: measure(record, [], None),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_record_gives_no_number(kfx, record, edit):
    kind, change = EDITS[edit]
    folder = record(kind)
    change(folder)
    for name, use in USES.items():
        with pytest.raises(RecordError, match=r"has changed since|is missing|damaged"):
            pytest.fail(f"{name}: {use(folder)}")
    code, out, err = kfx("predict", "r", "t.csv")
    assert (code, out, len(err.splitlines())) in [(3, "", 1), (1, "", 1)], err
    with pytest.raises(ConfigError, match=r"holds no run that has ended: .*(has changed since|is missing|damaged)"):
        finished.read([folder])


@pytest.mark.parametrize("kind", KINDS)
def test_an_untouched_record_gives_its_numbers(record, kind):
    folder = record(kind)
    assert len(finished.read([folder])[0]) == 1
    assert load_run(folder).kernel is not None
    shape = (2, 1, 8, 8) if kind == "network" else (2, 2)
    assert len(load_run(folder).predict(np.zeros(shape))) == 2


def test_what_concerns_no_number_may_be_edited(kfx, record):
    folder = record("exact")
    before = kfx("predict", "r", "t.csv")
    in_config("threads: null", "threads: 1")(folder)
    in_config("figures: false", "figures: true")(folder)
    assert kfx("predict", "r", "t.csv") == before
    assert before[0] == 0


def test_an_edit_is_found_in_a_record_of_another_version_too(kfx, record, monkeypatch):
    folder = record("exact")
    monkeypatch.setattr("kfx.record.origin.__version__", "99.0")
    code, _, err = kfx("predict", "r", "t.csv")
    assert (code, "was computed by kfx" in err) == (0, True)
    in_config("seed: 0", "seed: 1")(folder)
    code, out, err = kfx("predict", "r", "t.csv")
    assert (code, out, len(err.splitlines())) == (3, "", 1)


def test_a_record_that_has_changed_is_left_out_of_tables_and_told_of_pictures(kfx, record):
    folder = record("exact")
    trace = folder / "trace.csv"
    trace.write_text(trace.read_text().replace("0,0.", "0,1.", 1))
    assert kfx("compare", "r", "--metric", "mse")[0] == 2
    for words in (["report", "r"], ["plot", "r"]):
        code, _, err = kfx(*words)
        assert (code, "has changed since the run wrote it" in err) == (0, True)


def test_a_pipe_as_data_of_a_record_is_not_read(kfx, record, made):
    folder = record("exact")
    os.mkfifo("pipe.csv")
    in_config(str(made("exact").parent / "t.csv"), str(Path("pipe.csv").absolute()))(folder)
    assert kfx("rerun", "r", "--output", "again")[0] == 3


def test_a_run_lies_in_no_other_and_holds_none(kfx, record):
    record("exact")
    for folder in ("r/inner", "."):
        code, _, err = kfx("run", "optimizer=none", f"hydra.run.dir={folder}")
        assert (code, "choose another" in err) == (2, True)


def test_a_data_file_is_used_only_with_its_recorded_checksum(kfx, record, made):
    folder = record("exact")
    secret = Path("secret.csv")
    secret.write_text(Path("t.csv").read_text().replace("0.", "1.", 1))
    in_config(str(made("exact").parent / "t.csv"), str(secret.absolute()))(folder)
    for words in (["predict", "r", "t.csv"], ["rerun", "r", "--output", "again"]):
        code, out, err = kfx(*words)
        assert (code, out, len(err.splitlines())) == (3, "", 1)
    (folder / "environment.json").unlink()
    code, out, err = kfx("rerun", "r", "--output", "again")
    assert (code, out, len(err.splitlines())) == (3, "", 1)
    assert not Path("again").exists()
    assert issubclass(ChangedError, RecordError)


# ---- a stranger's record


@pytest.fixture
def server():
    """An address where nothing should ring, and a function that says whether something did."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)

        def rang():
            try:
                listening.accept()[0].close()
            except BlockingIOError:
                return False
            return True

        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}", rang


@pytest.mark.parametrize("word", ["rerun", "resume"])
def test_hosts_stores_and_further_files_of_a_record_are_not_used(kfx, record, server, word):
    folder, (address, rang) = record("centres"), server
    in_config("scheduler: null", f"scheduler: {address}")(folder)
    in_config("workers: 1", "workers: 64")(folder)
    in_config("dashboard: 127.0.0.1:8787", "dashboard: 0.0.0.0:8787")(folder)
    in_config("store: null", f"store: {Path('theirs').absolute()}")(folder)
    in_config("predict: null", f"predict: {Path('t.csv').absolute()}")(folder)
    if word == "resume":
        in_json("metrics.json", lambda m: m.update(status="interrupted"))(folder)
    code, _, err = kfx(word, "r", *(["--output", "again"] if word == "rerun" else []))
    assert code == 0, err
    assert not rang()
    assert not Path("theirs").exists()
    assert not list(Path().rglob("new_predictions.csv"))
    for said in (
        f"cluster.scheduler={address}",
        "cluster.dashboard=0.0.0.0:8787",
        "evaluation.store=",
        "dataset.predict=",
    ):
        assert said in err
    if word == "rerun":
        ours = load_run("again")
        assert (ours.config.cluster.workers, ours.config.evaluation.store) == (1, None)
        assert kfx("rerun", "r", "--output", "third", "--store", "mine")[0] == 0
        assert list(Path("mine").glob("sums-*/manifest.json"))


LINKS = (
    "config.yaml",
    "trace.csv",
    "evaluation.csv",
    "history.csv",
    "environment.json",
    "figures",
    ".lock",
    "metrics.json",
)


@pytest.mark.parametrize("name", LINKS)
def test_no_link_out_of_a_record_is_read_or_written(kfx, record, name):
    folder = record("exact")
    victim, path = Path("victim"), folder / name
    if path.is_file():
        path.rename(victim)
    elif name == "figures":
        victim.mkdir()
    else:
        victim.write_text("precious")
    path.symlink_to(victim.absolute())
    before = None if victim.is_dir() else victim.read_bytes()
    for words in (["predict", "r", "t.csv"], ["report", "r"], ["plot", "r"], ["rerun", "r", "--output", "again"],
                  ["resume", "r"], ["export", "tensorboard", "r"], ["compare", "r", "--metric", "mse"]):  # fmt: skip
        code, out, err = kfx(*words)
        assert (code in (1, 2), out, len(err.splitlines())) == (True, "", 1), (words, err)
        assert f"{name}: is a link that leads out of the record" in err
    assert (list(victim.iterdir()) == []) if victim.is_dir() else (victim.read_bytes() == before)


def test_a_link_within_a_record_is_read(kfx, record):
    folder = record("exact")
    (folder / "trace.csv").rename(folder / "kept.csv")
    (folder / "trace.csv").symlink_to("kept.csv")
    assert kfx("predict", "r", "t.csv")[0] == 0
