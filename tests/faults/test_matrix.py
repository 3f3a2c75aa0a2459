"""Every legal pair of kernel and optimizer, on test points and in folds, goes on from what a kill leaves."""

from __future__ import annotations

import random
import shutil

import pytest

from kfx.config.registry import OPTIONS
from kfx.experiment.plan import Plan
from kfx.record.trace import Trace
from kfx.running.story import resume, run
from tests.faults.conftest import FULL
from tests.faults.harness import results, rows
from tests.smoke_runs import pairs, words_of

QUICK = [
    "dataset.n_train=60",
    "dataset.n_test=30",
    "sampler.batch_size=20",
    "evaluation.n_interpolation=[30]",
    "evaluation.batches=2",
    "follow.every=2",
    "follow.draw=anew",
    "device.threads=1",
    "device.precision_check=off",
    "figures=false",
    "checkpoint.iterations=2",
    "checkpoint.seconds=1000",
]
EVALUATIONS = {"test points": [], "folds": ["dataset.n_test=0", "evaluation=k_fold", "evaluation.folds=2"]}
SOME = [
    *((kernel, "hybrid") for kernel in ("cnngp", "nngp", "rbf_network", "network_features")),
    ("network_features", "adam"),
    ("conv_dkm", "adam"),
    ("greens_function", "sgd"),
]
CASES = [
    pytest.param(
        *(kernel, optimizer, evaluation),
        marks=[pytest.mark.slow] * (evaluation == "folds" or kernel in ("cnngp", "conv_dkm")),
    )
    for kernel, optimizer in pairs([] if FULL else list(dict.fromkeys(["rbf", *(kernel for kernel, _ in SOME)])))
    for evaluation in EVALUATIONS
    if (FULL or kernel == "rbf" or (kernel, optimizer) in SOME)
    and (evaluation == "test points" or OPTIONS["kernel"][kernel]().quick == ())
]


@pytest.mark.parametrize(("kernel", "optimizer", "evaluation"), CASES)
def test_what_a_kill_leaves_goes_on_to_the_same_end(in_folder, monkeypatch, kernel, optimizer, evaluation, counts):
    """The folder as it is right after a random row is what SIGKILL would leave there."""
    rng = random.Random(f"{kernel} {optimizer} {evaluation}")
    words = [*words_of(kernel, optimizer), *QUICK, *EVALUATIONS[evaluation]]
    plan = Plan.of_words(words)
    folds = 2 if evaluation == "folds" else 1
    target, written, row = rng.randrange(plan.config.optimizer.iterations * folds), [0], Trace.row

    def watched(*arguments):
        shown = row(*arguments)
        if written[0] == target:
            shutil.copytree("whole", "killed")
        written[0] += 1
        return shown

    monkeypatch.setattr(Trace, "row", watched)
    assert run(plan, in_folder / "whole") == 0
    if not (in_folder / "killed").exists():  # the optimizer converged before
        pytest.skip(f"it ended after {written[0]} rows")
    counts["injected"] += 1
    monkeypatch.setattr(Trace, "row", row)
    assert resume(in_folder / "killed") == 0
    counts["resumed"] += 1
    found, expected = results(in_folder / "killed"), results(in_folder / "whole")
    counts["mismatches"] += found != expected
    assert found == expected
    assert rows(in_folder / "killed") == written[0]
    shutil.rmtree(in_folder / "killed")
