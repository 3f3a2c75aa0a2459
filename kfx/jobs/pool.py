"""`hydra/launcher=cores`: run the jobs of a sweep side by side, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from kfx.config.plugins import plugged_in
from kfx.experiment import compose
from kfx.jobs import sweep
from kfx.jobs.sweep import search_roots
from kfx.running.signals import NUMBERS
from kfx.screen.progress import say

smoke = False
"""Whether jobs run under the overrides of their configs' key `smoke`; set by the command before Hydra launches them."""
TARGET = "hydra_plugins.kfx.CoresLauncher"


def register() -> None:
    """Make the launcher known to Hydra, which looks for plugins in the package `hydra_plugins` alone."""
    plugins = Plugins.instance()  # has looked for those that are installed
    name = TARGET.rpartition(".")[0]
    package = sys.modules.setdefault("hydra_plugins", ModuleType("hydra_plugins"))
    package.kfx = sys.modules[name] = sys.modules[__name__]  # type: ignore[attr-defined]
    CoresLauncher.__module__ = name
    plugins.register(CoresLauncher)


class Stopped(KeyboardInterrupt):
    """A signal ended the sweep, and every job under way has written its state."""


class CoresLauncher(Launcher):
    """Runs at most `n_jobs` jobs at once; -1: one a core. Each gets its share of the cores as threads.

    A worker that is killed loses the job that it was at, and no other. A signal goes on to the workers, which write
    their states; nothing new is started then. Workers notice the end of this process, however it comes, and stop too.
    """

    def __init__(self, n_jobs: int = 2) -> None:
        cores = len(os.sched_getaffinity(0))
        self.n_jobs = cores if n_jobs == -1 else n_jobs
        self.threads = max(cores // self.n_jobs, 1)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs; what each returns is what a sweeper may minimise."""
        folder = Path(str(self.config.hydra.sweep.dir))
        folder.mkdir(parents=True, exist_ok=True)
        jobs = [self._job(folder, initial_job_idx + i, list(words)) for i, words in enumerate(job_overrides)]
        for job in jobs:
            job["of"] = initial_job_idx + len(jobs)
        Pool(self.n_jobs, jobs).run()
        return [self._returned(Path(job["directory"]), job["overrides"]) for job in jobs]

    def _job(self, folder: Path, number: int, words: list[str]) -> dict[str, Any]:
        config = self.context.config_loader.load_sweep_config(self.config, words)
        if smoke:
            words = [*words, *compose.smoke_words(config)]
            config = self.context.config_loader.load_sweep_config(self.config, words)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
            directory = folder / str(config.hydra.sweep.subdir)
            overrides = list(config.hydra.overrides.task)
            del config["hydra"]
            if config.device.threads is None:
                config.device.threads = self.threads
        return {
            "config": OmegaConf.to_container(config, resolve=False),
            "directory": str(directory),
            "overrides": overrides,
            "roots": [str(root) for root in search_roots(folder)],
            "number": number + 1,
            "plugins": [asdict(plugin) for plugin in plugged_in()],
        }

    def _returned(self, directory: Path, overrides: list[str]) -> JobReturn:
        done = JobReturn(overrides=overrides, working_dir=str(directory), task_name="kfx", status=JobStatus.COMPLETED)
        done.return_value = sweep.loss(directory)
        return done


class Pool:
    """Worker processes and the jobs that wait for them. done: called after each job."""

    def __init__(self, size: int, jobs: Sequence[dict[str, Any]], done: Callable[[], None] = lambda: None) -> None:
        self.size, self.waiting, self.done = size, deque(jobs), done
        self.busy: dict[subprocess.Popen[bytes], dict[str, Any]] = {}
        self.idle: list[subprocess.Popen[bytes]] = []
        self.stopped: int | None = None

    def run(self) -> None:
        with selectors.DefaultSelector() as answers, self._signals():
            try:
                while self.busy or (self.waiting and self.stopped is None):
                    while self.waiting and self.stopped is None and len(self.busy) < self.size:
                        self._hand_over(self.waiting.popleft(), answers)
                    for key, _ in answers.select(timeout=0.5):
                        self._take(key.data, answers)
            finally:
                for worker in [*self.idle, *self.busy]:
                    self._end(worker)
        if self.stopped is not None:
            raise Stopped(128 + self.stopped)

    def _hand_over(self, job: dict[str, Any], answers: selectors.BaseSelector) -> None:
        while True:
            worker = self.idle.pop() if self.idle else self._started(answers)
            assert worker.stdin is not None
            try:
                worker.stdin.write(json.dumps(job).encode() + b"\n")
                worker.stdin.flush()
            except BrokenPipeError:  # it died idle
                answers.unregister(worker.stdout)  # type: ignore[arg-type]
                self._end(worker)
                continue
            self.busy[worker] = job
            if self.stopped is not None:  # between its writing and here
                with contextlib.suppress(ProcessLookupError):
                    worker.send_signal(self.stopped)
            return

    def _started(self, answers: selectors.BaseSelector) -> subprocess.Popen[bytes]:
        # A session of its own: a signal to the group, as from Ctrl-C, comes through this process alone.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)  # it inherits this, until it can take note of them
        try:
            worker = subprocess.Popen(
                [sys.executable, "-m", "kfx.jobs.worker"],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert worker.stdout is not None
        answers.register(worker.stdout, selectors.EVENT_READ, worker)
        return worker

    def _take(self, worker: subprocess.Popen[bytes], answers: selectors.BaseSelector) -> None:
        assert worker.stdout is not None
        answer = os.read(worker.stdout.fileno(), 100)
        job = self.busy.pop(worker, None)
        if job is not None:
            self.done()
        if answer and self.stopped is None:
            self.idle.append(worker)
            return
        answers.unregister(worker.stdout)
        self._end(worker)
        if worker in self.idle:
            self.idle.remove(worker)
        code = worker.returncode
        before_it_began = self.stopped is not None and code in (0, -self.stopped)
        if not answer and job is not None and not before_it_began:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            say(f"kfx: job {job['number']} of {job['of']}: its process ended {how}: {job['directory']}")

    def _end(self, worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdin is not None
        with contextlib.suppress(OSError):
            worker.stdin.write(b"null\n")
            worker.stdin.flush()
        worker.wait()
        for stream in (worker.stdin, worker.stdout):
            if stream is not None:
                stream.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM go on to the busy workers; the second and all later ones too, and change nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: Any) -> None:
            self.stopped = self.stopped or number
            for worker in list(self.busy):
                with contextlib.suppress(ProcessLookupError):
                    worker.send_signal(self.stopped)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
