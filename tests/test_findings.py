"""What a run found: every list, page and export shows the same row of it."""

from __future__ import annotations

import pytest

from kfx import load_run
from kfx.experiment.plan import Plan
from kfx.export.finished import read
from kfx.jobs.job import Job
from kfx.jobs.sweep import loss
from kfx.record.findings import Findings, mean_of
from kfx.report.run_page import view

WORDS = ("dataset.n_train=40", "dataset.n_test=20", "sampler.batch_size=20", "optimizer.iterations=2")
WORDS += ("figures=false", "device.precision_check=off", "evaluation.batches=2", "hydra.run.dir=r")
SEVERAL = ("evaluation.n_interpolation=[20,40]", "evaluation.regularization.value=[1e-3,1e-1]")


def evaluated(metric, size, regularization, mean, kernel="trained"):
    place = {"metric": metric, "n_interpolation": size, "configured_regularization": regularization}
    return {"kernel": kernel, **place, "regularization": regularization, "mean": mean, "sd": None}


def test_the_row_that_leads_is_at_the_largest_number_of_points_with_the_first_lambda():
    rows = [
        evaluated("mse", size, regularization, mean)
        for size, regularization, mean in ((10, 0.1, 4.0), (10, 1.0, 3.0), (40, 0.1, 2.0), (40, 1.0, 1.0))
    ]
    found = Findings.of({"evaluation": rows})
    assert (found.metric, found.row()["mean"], found.row(size=10)["mean"]) == ("mse", 2.0, 4.0)
    assert found.row(kernel="initial") is None
    assert found.pair(found.at()) is None, "the initial kernel was not evaluated"
    assert mean_of(found.row()) == "2.0000"
    assert Findings.of({"evaluation": [*rows, evaluated("accuracy", 10, 0.1, 0.5)]}).metric == "accuracy"
    assert Findings.of({}).row() is None


def test_several_lambdas_are_shown_each_and_the_first_leads_everywhere(kfx, in_folder):
    assert kfx("run", *WORDS, *SEVERAL)[0] == 0
    run = load_run("r")
    rows = run.evaluation.query("kernel == 'trained' and metric == 'mse' and n_interpolation == 40")
    first = rows["value"].iloc[0]
    assert first != rows["value"].iloc[1]
    table = view(run).measured[1]  # after the sizes
    shown = [row[2:] for row in table.rows if row[:2] == ["mse", "40"]]
    assert table.heads == ["metric", "N_I#", "λ#", "initial#", "trained#"]
    assert [row[0] for row in shown] == ["0.001", "0.1"], "a row for each λ"
    assert len({row[2] for row in shown}) == 2
    (finished,), _ = read([in_folder / "r"])
    assert finished.results()["trained.mse"] == pytest.approx(first, rel=1e-12)
    job = Job(Plan.of_words([*WORDS, *SEVERAL]), in_folder / "r", [in_folder])
    assert loss(job) == pytest.approx(first, rel=1e-12)
    assert f"mse {shown[0][2]}" in kfx("runs", ".")[1]


def test_the_page_has_the_words_of_the_closing_lines(kfx, in_folder):
    assert kfx("run", *WORDS, "kernel=sum", "objective=nll")[0] == 0
    run = load_run("r")
    lines = run.summary()
    _, _, held_out, parameters, *_ = view(run).measured
    assert [row[0] for row in held_out.rows] == ["nll", "rho"]
    for name, before, after in parameters.rows:
        assert f"{name} {before} → {after}" in lines[0] or before == after
    for name, before, after, change in held_out.rows:
        shown = f"{before} → {after}  ({change})" if change else f"{before} → {after}"
        assert any(line.startswith(f"{name:<12}{shown} on ") for line in lines)
