"""A run with plugins is killed and resumed, with the same files named again."""

from __future__ import annotations

import signal

import pytest

from tests.faults.harness import Command, finish, results, rows, wait_for
from tests.plugins import write_plugins

WORDS = [
    "kernel=periodic",
    "objective=loo_absolute",
    "dataset=chirp",
    "optimizer=random_search",
    "sampler.batch_size=60",
    "optimizer.iterations=300",
    "device.threads=1",
    "device.precision_check=off",
    "figures=false",
    "checkpoint.iterations=5",
    "hydra.run.dir=r",
]


@pytest.mark.slow
def test_a_killed_run_with_plugins_ends_as_if_nothing_had_happened(tmp_path, counts):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        plugins = write_plugins(tmp_path / name)
    assert finish(tmp_path / "whole", "run", *plugins, *WORDS) == 0
    command = Command(tmp_path / "killed", "run", *plugins, *WORDS)
    run = tmp_path / "killed/r"
    wait_for(lambda: rows(run) > 100 or not command.process.is_alive())
    command.signal(signal.SIGKILL)
    command.wait()
    counts["injected"] += 1
    assert rows(run) < 300
    again = Command(tmp_path / "killed", "resume", "r")
    assert again.wait() == 2, "without its plugins it does not go on"
    assert "r: was made with the plugin " in again.output()
    assert finish(tmp_path / "killed", "resume", "r", *plugins) == 0
    counts["resumed"] += 1
    assert results(run) == results(tmp_path / "whole/r")
