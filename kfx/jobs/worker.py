"""A worker process that runs jobs one after another for `kfx.jobs.pool`."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from kfx.experiment import compose
from kfx.jobs import wire
from kfx.jobs.attempt import run_job
from kfx.outcomes import KfxError
from kfx.running.signals import INTERRUPTED, NUMBERS
from kfx.screen import terminal
from kfx.screen.progress import in_lines, numbered, say, told_to


def main() -> None:
    """Read a job from each line of standard input, run it, and answer with a line that holds its exit code.

    If the input ends without `END`, the pool has died: the current run then stops as by SIGTERM and saves its state.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # what a run prints goes to standard error
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        # Unbuffered: if this thread waited in a buffer, the interpreter could not end.
        for line in open(0, "rb", buffering=0, closefd=False):  # noqa: SIM115
            lines.put(line)
            if line == wire.END:
                return
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    # A KeyboardInterrupt that gets here came before a run could handle it.
    with terminal.unfailing(), terminal.quiet_interrupts(), in_lines(), contextlib.suppress(KeyboardInterrupt):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)
        while (line := lines.get()) != wire.END:
            code = _done(line)
            with contextlib.suppress(BrokenPipeError):  # the pool has gone
                os.write(answers, f"{code}\n".encode())
            if code in INTERRUPTED:
                break


def _done(line: bytes) -> int:
    """Run one job; return its exit code."""
    with _said_in(wire.log_of(line)):
        try:
            job, audience = wire.job_of(line)
        except KfxError as error:  # a plugin has changed or is missing
            say(f"kfx: {error}")
            return error.exit_code
        compose.give_options_to_hydra()
        with numbered(job.number, job.of), told_to(audience):
            return run_job(job)


@contextlib.contextmanager
def _said_in(log: Path | None) -> Iterator[None]:
    """Within the block, output and errors are appended to this file."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    with log.open("ab") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, kept in zip((1, 2), before, strict=True):
            os.dup2(kept, number)
            os.close(kept)


if __name__ == "__main__":
    main()
