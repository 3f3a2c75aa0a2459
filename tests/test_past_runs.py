"""Runs of the past: listed by `kfx runs`, and read where their records are damaged."""

from __future__ import annotations

import copy
import json
import os
import shutil
import time
from itertools import product

import numpy as np
import pytest
import yaml
from PIL import Image

import kfx as package
from kfx.outcomes import RecordError
from kfx.record.reading import read_config, read_environment, read_metrics, typed_words
from kfx.report import run_page

TINY = ["dataset.n_train=30", "dataset.n_test=20", "sampler.batch_size=10", "optimizer=adam", "optimizer.iterations=2"]
TINY += [
    "figures=false",
    "evaluation.batches=2",
    "evaluation.calibration=true",
    "follow.every=1",
    "follow.windows=[[1,2]]",
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two runs, once for all tests."""
    folder = tmp_path_factory.mktemp("made") / "s"
    package.sweep([*TINY, "seed=0,1", f"hydra.sweep.dir='{folder}'"], progress=False)
    return folder


@pytest.fixture
def runs(made, in_folder):
    shutil.copytree(made, in_folder / "s")
    return in_folder / "s"


# ---- the list


def test_runs_are_listed_newest_first_with_what_they_measured_and_their_command(kfx, runs, in_folder):
    now = time.time()
    deep = in_folder / "s" / "paper" / "experiment" / "sweep"
    shutil.copytree(runs / "0", deep / "0")
    for age, path in ((3, "0"), (1, "1"), (2, "paper/experiment/sweep/0")):
        os.utime(runs / path / "metrics.json", (now - 60 * age, now - 60 * age))
    metrics = json.loads((runs / "1/metrics.json").read_text())
    (runs / "1/metrics.json").write_text(json.dumps({**metrics, "status": "running"}))
    os.utime(runs / "1/metrics.json", (now, now))
    code, out, err = kfx("runs", "s")
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if "│ 20" in line]
    assert [line.split("│")[4].strip() for line in lines] == ["s/1", "s/paper/experiment/sweep/0", "s/0"]
    assert [line.split("│")[2].strip() for line in lines] == ["killed", "completed", "completed"]
    mse = next(row["mean"] for row in metrics["evaluation"] if (row["kernel"], row["metric"]) == ("trained", "mse"))
    assert f"mse {mse:.1f}" in lines[0]
    assert "kfx run seed=1 dataset.n_train=30" in " ".join(out.split()) or "kfx run dataset.n_train=30" in out
    assert len([line for line in kfx("runs", "s", "--last", "2")[1].splitlines() if "│ 20" in line]) == 2
    for words, told in (
        (["nowhere"], "holds no run"),
        (["s", "--last", "0"], "--last 0: expected a whole number >= 1"),
    ):
        code, _, err = kfx("runs", *words)
        assert (code, told in err, len(err.splitlines())) == (2, True, 1)


def test_a_damaged_run_is_listed_and_named(kfx, runs):
    (runs / "0/metrics.json").write_text('{"status": "done"}')
    (runs / "1/overrides.yaml").write_text("{a: 1}")
    code, out, err = kfx("runs", "s")
    assert code == 0
    assert "unreadable" in out
    assert sorted(line.split("/")[-1].partition(":")[0] for line in err.splitlines()) == [
        "metrics.json",
        "overrides.yaml",
    ]


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["rum"], "run"), (["compar", "s"], "compare"), (["export", "mlflo", "s"], "mlflow"), (["anmate"], "animate")],
)
def test_a_misspelt_command_is_told_what_was_meant(kfx, words, meant):
    code, _, err = kfx(*words)
    assert (code, f"(did you mean {meant}?)" in err, len(err.splitlines())) == (2, True, 1)


# ---- damage


WRONG = ("x", [1], {}, {"a": [1]}, None, True, 2.5, -1, [], 10**400, ...)


def keys(node, at=()):
    """Every key of nested mappings and lists; of a list the first item."""
    items = node.items() if isinstance(node, dict) else list(enumerate(node))[:1] if isinstance(node, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from keys(value, (*at, key))


def changed(content, at, value):
    """The content with another value at a key, or without it."""
    made = copy.deepcopy(content)
    node = made
    for key in at[:-1]:
        node = node[key]
    if value is ...:
        del node[at[-1]]
    else:
        node[at[-1]] = value
    return made


READERS = {
    "metrics.json": read_metrics,
    "environment.json": read_environment,
    "config.yaml": read_config,
    "overrides.yaml": typed_words,
}


@pytest.mark.parametrize(("name", "reader"), READERS.items())
def test_a_wrong_type_anywhere_is_a_line_and_costs_others_nothing(kfx, runs, monkeypatch, name, reader):
    """Either the file is refused, with its name and the key, or every command goes on with it."""
    monkeypatch.setattr(run_page, "_pictures", lambda directory: [])
    path = runs / "1" / name
    good = json.loads(path.read_text()) if name.endswith("json") else yaml.safe_load(path.read_text())
    if name == "metrics.json":
        assert {"windows", "last_iterations", "held_out", "evaluation_change"} <= good.keys()
        good = {**good, "flow_stopped": {"0": {"layer": 1, "reason": "x"}}, "plugins": [], "memory": {"fit_bytes": 1}}
        good |= {
            "fall_back": {"initial_kept": 0, "fits": 1, "kept": ["fitted"]},
            "remarks": ["x"],
            "features": ["a"],
            "reason": "x",
        }
    refused, accepted = [], {}
    for at, value in product(keys(good), WRONG):
        if name == "config.yaml" and (len(at) > 2 or at[1:] not in ((), ("name",))):
            continue  # the options check their own keys
        wrong = changed(good, at, value)
        path.write_text(json.dumps(wrong))  # which is YAML too
        try:
            reader(runs / "1")
        except RecordError as error:
            refused.append((at, str(error)))
        else:
            accepted.setdefault((at[0] if name == "metrics.json" else "", str(value)[:9]), wrong)
    assert len(refused) > 3
    for at, line in refused:
        assert line.startswith(f"{path}: damaged: ")
        assert str(at[0]) in line
    for wrong in list(accepted.values())[:: 1 + len(accepted) // 3]:
        path.write_text(json.dumps(wrong))
        for line in ("compare s --by kernel --mix", "runs s", "report s --output r.html"):
            code, out, err = kfx(*line.split())
            assert (code, bool(out)) == (0, True), (line, err)


@pytest.mark.parametrize("name", ["trace.csv", "evaluation.csv", "predictions.csv", "follow.csv"])
def test_text_in_the_place_of_numbers_is_a_line(kfx, runs, name):
    path = runs / "1" / name
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], ",".join("x" for _ in lines[1].split(",")), *lines[2:], ""]))
    for words in (["report", "s", "--output", "r.html"], ["plot", "s/1"]):
        code, _, err = kfx(*words)
        assert "Traceback" not in err
        assert code == (0 if words[0] == "report" else 1), "the other run has its page"
        assert f"1/{name}: damaged: " in err


def test_one_bad_run_ends_no_table_of_the_others(kfx, runs):
    metrics = json.loads((runs / "1/metrics.json").read_text())
    metrics["evaluation"][0]["mean"] = "x"
    (runs / "1/metrics.json").write_text(json.dumps(metrics))
    bad = f'{runs / "1"}/metrics.json: damaged: evaluation[0].mean="x": expected a number or null; '
    bad += "restore it, or take its folder away"
    for words in (["compare", "s", "--by", "kernel", "--curve", "c.png"], ["report", "s", "--output", "r.html"]):
        code, _, err = kfx(*words)
        assert (code, err) == (0, f"kfx: left out: {bad}\n")
    for words in (["report", "s/1"], ["rerun", "s/1", "--output", "again"], ["resume", "s/1"], ["plot", "s/1"]):
        code, _, err = kfx(*words)
        assert (code, len(err.splitlines())) == (1, 1)
        assert 'metrics.json: damaged: evaluation[0].mean="x": expected a number or null' in err


@pytest.mark.parametrize("content", ["[" * 100_000, "{}", "", "\udce9", '{"status": "completed", "evaluation": [{}]}'])
def test_any_content_of_a_record_is_a_line(kfx, runs, content):
    (runs / "1/metrics.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    code, _, err = kfx("report", "s/1")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "metrics.json: damaged: " in err


def test_a_number_with_hundreds_of_digits_is_a_line(kfx):
    code, _, err = kfx("run", f"checkpoint.seconds={10**400}")
    assert (code, err) == (2, "kfx: checkpoint.seconds: is too large; expected a number >= 0\n")


def test_a_film_has_a_frame_for_each_snapshot(kfx, in_folder):
    for name in ("line", "swiss_roll"):
        words = [f"dataset={name}", "dataset.n_train=20", "optimizer=flow_euler", "optimizer.iterations=4"]
        words += ["flow.snapshots=4", "sampler.batch_size=10", "evaluation.batches=0", f"hydra.run.dir={name}"]
        assert kfx("run", *words)[0] == 0
        assert kfx("animate", name, "--output", f"{name}.gif", "--seconds", "1")[0] == 0
        with Image.open(f"{name}.gif") as film:
            assert film.n_frames == 5
            frames = []
            for number in (0, 4):
                film.seek(number)
                frames.append(np.asarray(film.convert("L"), dtype=int))
        assert np.abs(frames[1] - frames[0]).max() > 50, "the points move"
