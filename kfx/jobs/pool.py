"""A pool of processes that run jobs in parallel, for `hydra/launcher=cores`, sweeps from Python, studies and
reproductions."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from kfx.jobs import wire
from kfx.jobs.job import Job
from kfx.running.signals import INTERRUPTED, NUMBERS, Interrupted
from kfx.screen.progress import Audience, say


def processes(at_once: int) -> int:
    """How many processes `n_jobs` stands for: -1 stands for one on each core."""
    return len(os.sched_getaffinity(0)) if at_once < 0 else at_once


def share_of(at_once: int) -> int:
    """The threads of each of so many processes that share this machine's cores; -1: as many processes as cores."""
    return max(len(os.sched_getaffinity(0)) // processes(at_once), 1)


@dataclass
class _Work:
    """A running job, and when it began."""

    job: Job
    began: float


class Pool:
    """Worker processes that run at most `size` jobs at once; each job gets its share of the cores as threads.

    jobs: taken one by one, as workers become free. audience: who sees the output of the runs.
    done: called with each job, its exit code and seconds; if the process died during the job, its own code, negative
        for a signal.
    fresh: give each job a process of its own, whose memory no earlier job has filled.
    deadline: in `time.monotonic`; running jobs are then interrupted, and `resume=true` continues them.
    A killed worker loses only its current job. Signals are passed on to the workers, which save their states, and no
    new jobs start. Workers stop when this process ends, however it ends.
    """

    def __init__(
        self,
        size: int,
        jobs: Iterable[Job],
        done: Callable[[Job, int, float], None] = lambda job, code, seconds: None,
        *,
        audience: Audience = Audience.COMMAND,
        fresh: bool = False,
        deadline: float | None = None,
        tell: Callable[[str], None] = say,
    ) -> None:
        self.size, self.waiting, self.done, self.audience = size, iter(jobs), done, audience
        self.fresh, self.deadline, self.tell = fresh, deadline, tell
        self.threads = share_of(size)
        self.busy: dict[subprocess.Popen[bytes], _Work] = {}
        self.idle: list[subprocess.Popen[bytes]] = []
        self.stopped: int | None = None
        self.is_over = False

    def run(self) -> None:
        """Run the jobs; Interrupted after a signal, once every running job has saved its state."""
        with selectors.DefaultSelector() as answers, self._signals():
            try:
                self._fill(answers)
                while self.busy:
                    for key, _ in answers.select(timeout=0.5):
                        self._take(key.data, answers)
                    if self.deadline is not None and time.monotonic() > self.deadline:
                        self.is_over, self.deadline = True, None
                        self.tell("the budget is spent; the next call continues the running jobs")
                        self._stop(signal.SIGINT)
                    self._fill(answers)
            except BaseException:  # from `jobs` or `done`: nobody waits for the running jobs any more
                self._stop(signal.SIGINT)
                raise
            finally:
                for worker in [*self.idle, *self.busy]:
                    self._end(worker)
        if self.stopped is not None and not self.is_over:
            raise Interrupted(128 + self.stopped)

    def _fill(self, answers: selectors.BaseSelector) -> None:
        while self.stopped is None and len(self.busy) < self.size:
            job = next(self.waiting, None)
            if job is None:
                return
            self._hand_over(job, answers)

    def _hand_over(self, job: Job, answers: selectors.BaseSelector) -> None:
        line = wire.line_of(job, self.threads, self.audience)
        while True:
            worker = self.idle.pop() if self.idle else self._started(answers)
            assert worker.stdin is not None
            try:
                worker.stdin.write(line)
                worker.stdin.flush()
            except BrokenPipeError:  # it died while idle
                answers.unregister(worker.stdout)  # type: ignore[arg-type]
                self._end(worker)
                continue
            self.busy[worker] = _Work(job, time.monotonic())
            if self.stopped is not None:  # a signal came since the job was written
                with contextlib.suppress(ProcessLookupError):
                    worker.send_signal(self.stopped)
            return

    def _started(self, answers: selectors.BaseSelector) -> subprocess.Popen[bytes]:
        # Its own session, so that a signal to the group, such as Ctrl-C, reaches it only through this process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)  # inherited by the worker until it handles them
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
        work = self.busy.pop(worker, None)
        code = int(answer.split()[0]) if answer else None
        if code is not None and code not in INTERRUPTED and self.stopped is None and not self.fresh:
            self.idle.append(worker)
        else:
            answers.unregister(worker.stdout)
            self._end(worker)
            if worker in self.idle:
                self.idle.remove(worker)
        if work is None:
            return
        if code is None:
            code = worker.returncode
            if code == 0 and self.stopped is None:  # a signal came before the job began
                self.waiting = chain([work.job], self.waiting)
                return
        before_it_began = not answer and self.stopped is not None and code in (0, -self.stopped)
        if not answer and not before_it_began:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            of = f"job {work.job.number} of {work.job.of}" if work.job.of > 1 else str(work.job)
            say(f"kfx: {of}: its process ended {how}: {work.job.directory}")
        self.done(work.job, code, time.monotonic() - work.began)

    def _end(self, worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdin is not None
        with contextlib.suppress(OSError):
            worker.stdin.write(wire.END)
            worker.stdin.flush()
        worker.wait()
        for stream in (worker.stdin, worker.stdout):
            if stream is not None:
                stream.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Within the block, SIGINT and SIGTERM are passed on to the busy workers, as are repeated signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        before = {
            number: signal.signal(number, lambda number, frame: self._stop(number))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int) -> None:
        self.stopped = self.stopped or number
        for worker in list(self.busy):
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(self.stopped)
