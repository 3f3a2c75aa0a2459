"""A record that version 0.1 wrote loads, compares, draws and repeats."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kfx import load_run
from kfx.jobs.sweep import rows
from kfx.plots import draw
from kfx.record.search import runs_below

RECORD = Path(__file__).parent / "record_0_1"


@pytest.fixture
def old(in_folder):
    """A copy of it in the working folder."""
    shutil.copytree(RECORD, in_folder / "old")
    return in_folder / "old"


def test_it_loads_with_its_kernel(old):
    run = load_run(old)
    assert run.metrics["status"] == "completed"
    assert len(run.trace) == 4
    assert run.kernel.parameters["sigma"] == run.metrics["parameters"]["final"]["sigma"]
    assert {path.stem for path in draw(old)} >= {"rho", "parameters", "evaluation"}


@pytest.mark.parametrize("has_held_out", [True, False])
def test_its_rho_of_single_batches_is_named_so(old, has_held_out):
    path = old / "metrics.json"
    written = json.loads(path.read_text())
    held_out = written["held_out"]["rho"]
    if not has_held_out:
        del written["held_out"]
        path.write_text(json.dumps(written))
    run, (found,) = load_run(old), runs_below([old])
    for metrics in (run.metrics, found.metrics):
        assert metrics["rho_batch"]["last"] == written["rho"]["final"] == run.trace["rho"].iloc[-1]
        known = {"initial": held_out["initial"]["mean"], "final": held_out["trained"]["mean"]}
        assert metrics.get("rho") == ({**known, "best": min(known.values())} if has_held_out else None)
    (row,) = rows([(["a"], str(found.identity))], [old])
    assert row["rho_last_batch"] == written["rho"]["final"]
    assert row["rho_final"] == (held_out["trained"]["mean"] if has_held_out else "")


def test_it_repeats_to_the_same_numbers(old, kfx):
    code, out, err = kfx("rerun", "old", "--output", "again")
    assert code == 0, err
    assert out.splitlines()[-1].startswith("the same: ")
    assert "published   mse before training 6.865, measured" in out


def test_it_stands_in_a_table_beside_a_new_one(old, kfx, in_folder):
    assert kfx("rerun", "old", "--output", "again")[0] == 0
    code, out, err = kfx("compare", "old", "again", "--metric", "mse", "--mix")
    assert code == 0, err
    assert "rbf" in out


def test_it_is_not_resumed_as_if_nothing_had_changed(old, kfx):
    metrics = old / "metrics.json"
    metrics.write_text(metrics.read_text().replace('"completed"', '"interrupted"'))
    code, _, err = kfx("resume", "old")
    assert code == 1
    assert "belongs to another run" in err
    assert "the config, the data or kfx has changed; start anew with kfx run" in err
