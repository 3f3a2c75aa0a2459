"""A process that runs jobs of a sweep, one after another, for `kfx.running.launcher`."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from kfx.config import compose, registry
from kfx.running import terminal
from kfx.running.job import attempt
from kfx.running.progress import numbered
from kfx.running.signals import INTERRUPTED


def main() -> None:
    """Read jobs from standard input, a line each, and answer with a line each, the exit code.

    The end of the input without a word is the launcher's own end: the run under way then stops as by SIGTERM, with its
    state on disk.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # what a run prints is for people
    jobs: queue.SimpleQueue[dict | None] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin.buffer:
            job = json.loads(line)
            jobs.put(job)
            if job is None:
                return
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    with terminal.unfailing(), contextlib.suppress(KeyboardInterrupt):  # before a run could take note of it
        while (job := jobs.get()) is not None:
            registry.plug_in(job["plugins"])
            compose.prepare()
            raw = OmegaConf.create(job["config"])
            assert isinstance(raw, DictConfig)
            with numbered(job["number"], job["of"]):
                code = attempt(raw, Path(job["directory"]), job["overrides"], [Path(root) for root in job["roots"]])
            with contextlib.suppress(BrokenPipeError):  # nobody is left to hear it
                os.write(answers, f"{code}\n".encode())
            if code in INTERRUPTED:
                break


if __name__ == "__main__":
    main()
