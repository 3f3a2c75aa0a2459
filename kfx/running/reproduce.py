"""Run the commands of papers' numbers that nobody has run yet, a process each, and keep what they measured."""

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

from kfx.config.compose import composed, quoted, without_hydra
from kfx.report import tables
from kfx.report.reproduction import Entry, Part
from kfx.report.tables import Command

RUNS = Path("runs") / "reproduce"


@dataclass(frozen=True)
class Job:
    """A command with a seed. seconds: what it is expected to take; None where nothing like it has been run."""

    part: Part
    seed: int
    seconds: float | None

    @property
    def directory(self) -> Path:
        return RUNS / self.part.command.name / f"seed-{self.seed}"

    def __str__(self) -> str:
        return f"{self.part.command} seed={self.seed}"


def missing(entries: Sequence[Entry], seeds: int) -> list[Job]:
    """What is not there yet, or measured with other settings: the short ones first, the unknown last."""
    jobs = []
    for entry in entries:
        siblings = [part.table.seconds() for part in entry.parts if part.table is not None and not part.is_reading]
        usual = max(siblings, default=None)
        for part in [*entry.parts, *_readings(entry)]:
            own = part.table.seconds() if part.table is not None else usual
            known = part.table.seeds if part.table is not None and not part.changed else []
            if not part.is_reading or tuple(part.command.overrides) in entry.remark.readings:
                jobs += [Job(part, seed, own) for seed in range(seeds) if seed not in known]
    return sorted(jobs, key=lambda job: (job.seconds is None, job.seconds or 0.0))


def _readings(entry: Entry) -> list[Part]:
    """Variants that a remark names and nobody has run."""
    there = {part.command for part in entry.parts}
    named = [Command(entry.experiment, overrides) for overrides in entry.remark.readings]
    base = entry.parts[0]
    return [Part(command, base.items, None, True) for command in named if command not in there]


def run(
    jobs: Sequence[Job], folder: Path, at_once: int, deadline: float | None, say: Callable[[str], None]
) -> list[tuple[Job, str]]:
    """Run the jobs, as many at once as asked for, and write what each measured into its table below `folder`.

    At the deadline (of `time.monotonic`), and on Ctrl-C, what runs is interrupted, and goes on in the next call.
    Returns those that did not end well, with their reasons.
    """
    threads = max(len(os.sched_getaffinity(0)) // at_once, 1)
    children: dict[Path, subprocess.Popen[bytes]] = {}
    failed: list[tuple[Job, str]] = []
    writing, stopped = threading.Lock(), threading.Event()

    def one(job: Job) -> None:
        if stopped.is_set():
            return
        log = job.directory.parent / f"seed-{job.seed}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        words = [*job.part.command.words, f"seed={job.seed}", "resume=true", "figures=false"]
        words += [f"device.threads={threads}", f"hydra.run.dir={quoted(str(job.directory))}"]
        started = time.monotonic()
        with log.open("ab") as stream:
            child = subprocess.Popen(
                [sys.executable, "-m", "kfx", "run", *words], stdout=stream, stderr=stream, start_new_session=True
            )
            children[job.directory] = child
            code = child.wait()
        del children[job.directory]
        with writing:
            if code == 0:
                add(job.directory, job.part, folder)
                say(f"{job}: {time.monotonic() - started:.0f} s")
            elif not stopped.is_set():
                failed.append((job, f"exit code {code}; see {log}"))
                say(f"{job}: failed, {failed[-1][1]}")

    def stop() -> None:
        stopped.set()
        for child in list(children.values()):
            child.send_signal(signal.SIGINT)

    with ThreadPoolExecutor(at_once) as pool:
        waiting = [pool.submit(one, job) for job in jobs]
        try:
            while not all(each.done() for each in waiting):
                if deadline is not None and time.monotonic() > deadline and not stopped.is_set():
                    say("the budget is spent; what is under way goes on with the next call")
                    stop()
                for each in waiting:
                    if each.done():
                        each.result()  # what went wrong with one is not kept until all are done
                time.sleep(0.2)
        except BaseException:
            stop()
            raise
    for each in waiting:
        each.result()
    return failed


def add(directory: Path, part: Part, folder: Path) -> Path:
    """Put what a run measured into the table of its command."""
    raw = without_hydra(composed(part.command.words))
    table = tables.measure(directory, [item.printed.published for item in part.items], raw)
    return tables.write(folder, tables.merged(tables.read(folder).get(table.command), table))
