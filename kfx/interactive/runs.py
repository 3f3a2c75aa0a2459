"""Run, sweep and compare from Python, with the words, checks and records of the command."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfx.config.plugins import load_plugins
from kfx.estimators.recorded import predict_as_configured
from kfx.experiment import compose
from kfx.interactive.shown import Run, in_cell, load_run
from kfx.jobs import sweep as table_of_sweep
from kfx.jobs.attempt import run_jobs, run_or_reuse
from kfx.jobs.job import Job
from kfx.jobs.plans import Plans, plans
from kfx.jobs.pool import Pool
from kfx.numerics import process
from kfx.outcomes import ConfigError, RunError, Status
from kfx.record.reading import read_metrics
from kfx.report.typed import own_words
from kfx.running.signals import INTERRUPTED
from kfx.screen import notebook
from kfx.screen.progress import Audience, Steps, is_notebook, told_to

if TYPE_CHECKING:
    import pandas as pd


def run(
    words: Sequence[str] = (),
    *,
    plugins: Sequence[str | Path] = (),
    config_dir: str | Path | None = None,
    smoke: bool = False,
    progress: bool = True,
) -> Run:
    """Do what `kfx run` does with these words, such as `["+experiment=khalid/mnist_simple_sgd", "seed=1"]`; return the
    run.

    plugins: files with your own options; they stay for the process. config_dir: a folder with further presets.
    smoke: apply the experiment's list `smoke`. progress: show progress.
    Calls from several threads run one after the other, because threads and precision are settings of the process; a
    sweep with `jobs=2` runs in parallel.
    ConfigError and DataError, before a folder is made, for words that cannot be run; RunError, with its `directory`,
    for a run that failed; KeyboardInterrupt for an interrupted run, which `resume=true` continues.
    """
    with _turns(progress):
        planned = _planned(words, plugins, config_dir, smoke, is_sweep=False)
        (job,) = planned.in_folder(planned.make_folder())
        code, directory = run_or_reuse(job)
        if code in INTERRUPTED:
            raise KeyboardInterrupt
        if code:
            raise RunError(str(read_metrics(directory).get("reason")), directory)
        predict_as_configured(job.plan.config, directory)
        return load_run(directory)


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep. table: `sweep.csv`, a row for each job, with its status."""

    directory: Path
    table: pd.DataFrame

    @property
    def runs(self) -> list[Run]:
        """The completed runs, in the order of the jobs."""
        done = self.table[self.table["status"] == Status.COMPLETED]
        return [load_run(directory) for directory in done["directory"]]

    def __repr__(self) -> str:
        done = int((self.table["status"] == Status.COMPLETED).sum())
        return f"Sweep({self.directory}: {done} of {len(self.table)} jobs completed)"

    def _repr_html_(self) -> str:
        from kfx.report.compared import of_sweep

        done = self.table[self.table["status"] == Status.COMPLETED]
        own = own_words([words.split() for words in done["overrides"]])
        means = of_sweep([Path(directory) for directory in done["directory"]], own) if len(done) else None
        rows: list[Any] = self.table.to_dict("records")
        jobs = replace(table_of_sweep.table(rows), title=repr(self))
        return "".join(in_cell(table) for table in (means, jobs) if table is not None)


def sweep(
    words: Sequence[str],
    *,
    jobs: int = 1,
    plugins: Sequence[str | Path] = (),
    config_dir: str | Path | None = None,
    smoke: bool = False,
    progress: bool = True,
) -> Sweep:
    """Do what `kfx run -m` does with these words, such as `["optimizer=sgd,adam", "seed=0,1"]`, `jobs` of them in
    parallel.

    A failing job does not stop the others; its row gives the reason. ConfigError for a sweeper that draws its jobs
    while it runs, which only the command can do; other errors as for `run`.
    """
    if not isinstance(jobs, int) or jobs < 1:
        raise ConfigError(f"jobs={jobs}: expected a whole number >= 1")
    with _turns(progress):
        planned = _planned(words, plugins, config_dir, smoke, is_sweep=True)
        if not planned.is_complete:
            raise ConfigError("hydra/sweeper: draws jobs while it runs, which only the command does; use kfx run -m")
        folder = planned.make_folder()
        all_jobs, path = planned.in_folder(folder), folder / "sweep.csv"
        expected = table_of_sweep.expected(all_jobs)
        table_of_sweep.write(path, table_of_sweep.rows(expected, []))
        try:
            _run_all(all_jobs, jobs, Audience.PYTHON if progress else Audience.NOBODY)
        finally:
            rows = table_of_sweep.rows(expected, planned.roots(folder))
            table_of_sweep.write(path, rows)
        import pandas as pd

        return Sweep(folder, pd.DataFrame(rows, columns=list(table_of_sweep.COLUMNS)))


def _run_all(jobs: Sequence[Job], at_once: int, audience: Audience) -> None:
    if not is_notebook(audience):
        run_jobs(jobs, _warn) if at_once == 1 else Pool(at_once, jobs, audience=audience).run()
        return
    codes: list[int] = []
    with Steps("jobs", len(jobs)) as steps:

        def ended(code: int) -> None:
            codes.append(code)
            failed = sum(map(bool, codes))
            steps.reach(len(codes), f"{failed} failed" if failed else "")

        if at_once == 1:  # a bar for all jobs, and below it that of the running one
            with notebook.in_one_place():
                for job in jobs:
                    ended(run_jobs([job], _warn))
        else:  # jobs in parallel say nothing
            Pool(at_once, jobs, lambda job, code, seconds: ended(code), audience=Audience.NOBODY).run()


def _warn(job: Job, line: str) -> None:  # the job's row says that it is missing
    warnings.warn(f"job {job.number} of {job.of}: {line}", stacklevel=6)


def compare(
    *runs: str | Path | Run | Sweep | Sequence[str | Path | Run | Sweep],
    by: str | Sequence[str] = ("kernel", "optimizer"),
    metric: str | None = None,
    kernel: str = "trained",
    n_interpolation: int | None = None,
    mix: bool = False,
) -> pd.DataFrame:
    """The table of `kfx compare`: means over seeds, with `_sd` and `_se` beside them, for each value of the keys `by`.

    runs: runs, sweeps or folders of them, or lists of these. metric: the accuracy of classes by default, else the mse.
        kernel, n_interpolation: which evaluation to compare. mix: average runs that differ in more than their seed.
    ConfigError if there is no run to show, or if runs of one row differ in more than their seed.
    """
    from kfx.record.comparison import better_in, gather, table

    every: list[Any] = [each for given in runs for each in (given if isinstance(given, (list, tuple)) else [given])]
    paths = [each.directory if isinstance(each, (Run, Sweep)) else Path(each) for each in every]
    completed, metric, found, left_out = gather(paths, metric, kernel, n_interpolation)
    for line in left_out:
        warnings.warn(f"left out: {line}", stacklevel=2)
    keys = [by] if isinstance(by, str) else list(by)
    return table(found, keys, metric, mix, better_in(completed, metric))


def plug_in(*paths: str | Path) -> None:
    """Register the options in these files, as `--plugin` does, for runs, sweeps and estimators of this process."""
    load_plugins(paths)


def _planned(
    words: Sequence[str],
    plugins: Sequence[str | Path],
    config_dir: str | Path | None,
    smoke: bool,
    *,
    is_sweep: bool,
) -> Plans:
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{words!r}: expected a list of words, as ['kernel=rbf', 'seed=1']")
    if options := [word for word in words if word.startswith("-")]:
        raise ConfigError(f"{options[0]}: is an option of the command; expected words as kernel=rbf, and keywords")
    load_plugins([plugins] if isinstance(plugins, (str, Path)) else plugins)
    return plans(list(words), None if config_dir is None else str(config_dir), is_sweep=is_sweep, smoke=smoke)


@contextmanager
def _turns(progress: bool) -> Iterator[None]:
    """Within the block no other call runs; settings of the process are restored at its end."""
    audience = Audience.PYTHON if progress else Audience.NOBODY
    with process.exclusively(), told_to(audience), compose.options_in_hydra():
        yield
