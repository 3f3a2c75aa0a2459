"""Runs of the command in processes that can be killed: forked from one that has imported everything already."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import time
from pathlib import Path

import numpy as np
import pandas as pd

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["kfx.jobs.attempt", "kfx.cli", "skopt", "kfx.optimizers.bayesian", "kfx.evaluation.scoring", "pandas"]
)


def _main(words, folder, log, limits, cache, own_group):
    if own_group:
        os.setsid()
    os.chdir(folder)
    os.environ["KFX_DATA_DIR"] = cache
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, resource.getrlimit(getattr(resource, name))[1]))
    from kfx.cli import main

    os._exit(main(words))


class Command:
    """`kfx` with these words, started at once in `folder`, in a process group of its own if asked; its output goes to
    `folder/log`."""

    def __init__(
        self, folder: Path, *words: str, limits: dict[str, int] | None = None, own_group: bool = False
    ) -> None:
        self.log = Path(folder) / "log"
        arguments = (list(words), str(folder), str(self.log), limits or {}, str(Path(folder) / "cache"), own_group)
        self.process = _CONTEXT.Process(target=_main, args=arguments)
        self.process.start()

    def signal(self, number: int) -> None:
        if self.process.is_alive():
            os.kill(self.process.pid, number)

    def wait(self, seconds: float = 120) -> int:
        self.process.join(seconds)
        assert not self.process.is_alive(), self.output()
        return self.process.exitcode

    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def finish(folder: Path, *words: str, limits: dict[str, int] | None = None) -> int:
    return Command(folder, *words, limits=limits).wait()


def rows(directory: Path) -> int:
    """Whole rows of a trace."""
    path = directory / "trace.csv"
    return max(path.read_bytes().count(b"\n") - 1, 0) if path.exists() else 0


def results(directory: Path) -> dict:
    """Everything that a run computed, times aside: equal for equal runs, to the last byte of each number."""
    from kfx.record.columns import untimed

    trace = untimed(pd.read_csv(directory / "trace.csv", dtype=str, keep_default_na=False))
    metrics = json.loads((directory / "metrics.json").read_text())
    for name in ("timing", "memory", "checksums"):  # those of files with times in them
        metrics.pop(name, None)
    metrics["plugins"] = [plugin["sha256"] for plugin in metrics.get("plugins", [])]  # their folders differ
    of_flows: dict = {}
    for path in [*directory.glob("flow.csv"), *directory.glob("follow.csv"), *directory.glob("layers-*.bin")]:
        of_flows[path.name] = path.read_bytes()
    for path in [*directory.glob("*-*.npz"), *directory.glob("snapshots/*.npz")]:
        with np.load(path) as stored:
            of_flows[path.name] = {name: stored[name].tobytes() for name in stored.files}
    evaluation = (directory / "evaluation.csv").read_text()
    return {"trace": trace.to_csv(), "evaluation": evaluation, "metrics": metrics, **of_flows}


def wait_for(condition, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
