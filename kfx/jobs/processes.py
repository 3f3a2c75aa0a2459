"""Several runs at once, a process each: what papers' numbers and studies are made of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kfx.config.overrides import quoted
from kfx.running.signals import interruptible


@dataclass(frozen=True)
class Job:
    """A run: its words, those of `kfx run` itself first, and where it goes. What it says goes into a file beside."""

    words: tuple[str, ...]
    directory: Path

    @property
    def log(self) -> Path:
        return self.directory.with_name(f"{self.directory.name}.log")

    def __str__(self) -> str:
        return " ".join(["kfx run", *self.words])


def run(
    jobs: Sequence[Job],
    at_once: int,
    *,
    say: Callable[[str], None],
    done: Callable[[Job], None] = lambda job: None,
    deadline: float | None = None,
) -> list[Job]:
    """Run the jobs, as many at once as asked for, which share the cores; what is completed already is not run again.

    done: called after each that ended well, one at a time. At the deadline (of `time.monotonic`), and on Ctrl-C, what
    runs is interrupted, and goes on in the next call. Returns the jobs that failed.
    """
    threads = max(len(os.sched_getaffinity(0)) // at_once, 1)
    children: dict[Path, subprocess.Popen[bytes]] = {}
    failed: list[Job] = []
    telling, stopped = threading.Lock(), threading.Event()

    def one(job: Job) -> None:
        if stopped.is_set():
            return
        job.log.parent.mkdir(parents=True, exist_ok=True)
        place = [f"device.threads={threads}", "resume=true", f"hydra.run.dir={quoted(str(job.directory))}"]
        started = time.monotonic()
        with job.log.open("ab") as stream:
            command = [sys.executable, "-m", "kfx", "run", *job.words, *place]
            child = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
            children[job.directory] = child
            code = child.wait()
        del children[job.directory]
        with telling:
            if code == 0:
                done(job)
                say(f"{job}: {time.monotonic() - started:.0f} s")
            elif not stopped.is_set():
                failed.append(job)
                say(f"{job}: failed with exit code {code}; see {job.log}")

    def stop() -> None:
        stopped.set()
        for child in list(children.values()):
            child.send_signal(signal.SIGINT)

    with interruptible(), ThreadPoolExecutor(at_once) as pool:
        waiting = [pool.submit(one, job) for job in jobs]
        try:
            while not all(each.done() for each in waiting):
                if deadline is not None and time.monotonic() > deadline and not stopped.is_set():
                    say("the budget is spent; what is under way goes on with the next call")
                    stop()
                for each in waiting:
                    if each.done():
                        each.result()  # what went wrong with one is not kept until all are done
                time.sleep(0.1)
        except BaseException:
            stop()
            raise
    return failed
