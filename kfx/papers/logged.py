"""Jobs that write their output into log files, for studies and reproductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from kfx.config.plugins import Plugin
from kfx.experiment.plan import Plan
from kfx.jobs.job import Job
from kfx.jobs.plans import search_roots
from kfx.jobs.pool import Pool
from kfx.running.signals import Interrupted


def logged(
    words: Sequence[str], directory: Path, *, smoke: bool = False, plugins: Sequence[Plugin] | None = None
) -> Job:
    """The job of these words of `kfx run` in `directory`, with its log beside it; a completed run is not run again.

    plugins: the plugins that it needs; None for all in use.
    """
    plan = Plan.of_words([*words, "figures=false", "resume=true"], smoke=smoke)
    if plugins is not None:
        plan = replace(plan, plugins=tuple(plugins))
    log = directory.with_name(f"{directory.name}.log")
    return Job(plan, directory, search_roots(directory), log=log, is_checked=False)


def run(
    jobs: Iterable[Job],
    at_once: int,
    *,
    tell: Callable[[str], None],
    done: Callable[[Job], None] = lambda job: None,
    deadline: float | None = None,
    fresh: bool = False,
) -> list[Job]:
    """Run the jobs, `at_once` at a time, which share the cores; return the failed ones.

    tell: called with a line when a job ends. done: called after each successful job. fresh: see `Pool`. At the deadline
        (in `time.monotonic`), and on Ctrl-C, running jobs are interrupted; the next call continues them.
    """
    failed: list[Job] = []

    def ended(job: Job, code: int, seconds: float) -> None:
        if code == 0:
            done(job)
            tell(f"{job}: {seconds:.0f} s")
        elif pool.stopped is None:
            failed.append(job)
            log = f"; see {job.log}" if job.log is not None and job.log.is_file() else ""
            tell(f"{job}: failed with exit code {code}{log}")

    pool = Pool(at_once, jobs, ended, deadline=deadline, fresh=fresh, tell=tell)
    try:
        pool.run()
    except Interrupted:
        tell("kfx: interrupted; the same command goes on")
        raise
    return failed
