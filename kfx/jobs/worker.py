"""A process that runs jobs of a sweep, one after another, for `kfx.jobs.pool`."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kfx.config.plugins import load_plugins, require_plugins
from kfx.experiment import compose
from kfx.jobs.attempt import attempt
from kfx.outcomes import KfxError
from kfx.running.signals import INTERRUPTED, NUMBERS
from kfx.screen import terminal
from kfx.screen.progress import Audience, in_lines, numbered, say, told_to


def main() -> None:
    """Read jobs from standard input, a line each, and answer with a line each, the exit code.

    The end of the input without a word is the launcher's own end: the run under way then stops as by SIGTERM, with its
    state on disk.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # what a run prints is for people
    jobs: queue.SimpleQueue[dict | None] = queue.SimpleQueue()

    def listen() -> None:
        # Unbuffered: a buffer that this thread waits in would stop the interpreter's end.
        for line in open(0, "rb", buffering=0, closefd=False):  # noqa: SIM115
            job = json.loads(line)
            jobs.put(job)
            if job is None:
                return
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    # A KeyboardInterrupt that reaches this far came before a run could take note of it.
    with terminal.unfailing(), terminal.quiet_interrupts(), in_lines(), contextlib.suppress(KeyboardInterrupt):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
        while (job := jobs.get()) is not None:
            with numbered(job["number"], job["of"]):
                try:
                    code = _done(job)
                except KfxError as error:  # of a plugin that has changed or gone
                    say(f"kfx: {error}")
                    code = error.exit_code
            with contextlib.suppress(BrokenPipeError):  # nobody is left to hear it
                os.write(answers, f"{code}\n".encode())
            if code in INTERRUPTED:
                break


def _done(job: dict[str, Any]) -> int:
    """The exit code of one job, with the plugins that the command was given."""
    load_plugins([plugin["path"] for plugin in job["plugins"]])
    require_plugins(job["plugins"], job["directory"])
    compose.give_options_to_hydra()
    raw = OmegaConf.create(job["config"])
    assert isinstance(raw, DictConfig)
    with told_to(Audience(job.get("audience", Audience.COMMAND))):
        return attempt(raw, Path(job["directory"]), job["overrides"], [Path(root) for root in job["roots"]])


if __name__ == "__main__":
    main()
