"""Run, sweep and compare from Python: the words, the checks and the records are those of the command."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf, open_dict

from kfx.config.plugins import load_plugins, plugged_in
from kfx.experiment import compose
from kfx.interactive.shown import Run, load_run
from kfx.jobs import sweep as table_of_sweep
from kfx.jobs.attempt import attempted
from kfx.jobs.plan import Prepared, prepare
from kfx.jobs.pool import Pool
from kfx.numerics import process, threads
from kfx.outcomes import ConfigError, KfxError, RunError, Status
from kfx.record.reading import read_metrics
from kfx.running.signals import INTERRUPTED
from kfx.screen import notebook
from kfx.screen.progress import Audience, Steps, numbered, told_to

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
    """Do what `kfx run` does with these words, `["+experiment=khalid/mnist_simple_sgd", "seed=1"]`, and read the run.

    plugins: files with options of one's own; they stay for the process. config_dir: a folder of further presets. smoke:
    under the experiment's list `smoke`. progress: whether it is shown.

    Calls from several threads take turns, for threads and precision belong to the process: a sweep with `jobs=2` runs
    side by side. ConfigError and DataError for words that cannot be run, before a folder is made; RunError, with its
    `directory`, for a run that failed; KeyboardInterrupt for one that was interrupted: `resume=true` goes on with it.
    """
    with _turns(progress):
        prepared = _prepared(words, plugins, config_dir, smoke, is_sweep=False)
        folder = prepared.make_folder()
        roots = table_of_sweep.search_roots(folder)
        raw = compose.without_hydra(prepared.composed[0])
        code, directory = attempted(raw, folder, prepared.words[0], roots)
        if code in INTERRUPTED:
            raise KeyboardInterrupt
        if code:
            raise RunError(str(read_metrics(directory).get("reason")), directory)
        return load_run(directory)


@dataclass(frozen=True)
class Sweep:
    """The runs of a sweep. table: `sweep.csv`, a row a job, with its status."""

    directory: Path
    table: pd.DataFrame

    @property
    def runs(self) -> list[Run]:
        """Those that are completed, in the order of the jobs."""
        done = self.table[self.table["status"] == Status.COMPLETED]
        return [load_run(directory) for directory in done["directory"]]

    def __repr__(self) -> str:
        done = int((self.table["status"] == Status.COMPLETED).sum())
        return f"Sweep({self.directory}: {done} of {len(self.table)} jobs completed)"

    def _repr_html_(self) -> str:
        shown = self.table.drop(columns=["identity"]).to_html(index=False, border=0, na_rep="")
        return f"<p>{self!r}</p>{shown}"


def sweep(
    words: Sequence[str],
    *,
    jobs: int = 1,
    plugins: Sequence[str | Path] = (),
    config_dir: str | Path | None = None,
    smoke: bool = False,
    progress: bool = True,
) -> Sweep:
    """Do what `kfx run -m` does with these words, `["optimizer=sgd,adam", "seed=0,1"]`, `jobs` of them side by side.

    One job that fails does not stop the others: its row says why. Errors as `run`, but for failed jobs.
    """
    if not isinstance(jobs, int) or jobs < 1:
        raise ConfigError(f"jobs={jobs}: expected a whole number >= 1")
    with _turns(progress):
        prepared = _prepared(words, plugins, config_dir, smoke, is_sweep=True)
        if prepared.shared.sweeper._target_ != table_of_sweep.BASIC_SWEEPER:
            raise ConfigError("hydra/sweeper: draws jobs while it runs, which only the command does; use kfx run -m")
        folder = prepared.make_folder()
        identities, path = prepared.identities(), folder / "sweep.csv"
        table_of_sweep.write(path, table_of_sweep.rows(identities, []))
        try:
            _run_all(prepared, folder, jobs, Audience.PYTHON if progress else Audience.NOBODY)
        finally:
            rows = table_of_sweep.rows(identities, prepared.roots(folder))
            table_of_sweep.write(path, rows)
        import pandas as pd

        return Sweep(folder, pd.DataFrame(rows, columns=list(table_of_sweep.COLUMNS)))


def _run_all(prepared: Prepared, folder: Path, at_once: int, audience: Audience) -> None:
    roots = table_of_sweep.search_roots(folder)
    places = [folder / compose.text_at(raw.hydra, "sweep.subdir") for raw in prepared.composed]
    configs = [compose.without_hydra(raw) for raw in prepared.composed]
    count = len(places)
    if at_once > 1:
        share = max(threads.available() // at_once, 1)
        shows_bar = audience == Audience.PYTHON and notebook.is_here()  # one for all jobs, which then say nothing
        told = Audience.NOBODY if shows_bar else audience
        plugins = [asdict(plugin) for plugin in plugged_in()]
        jobs: list[dict[str, Any]] = []
        for number, (raw, place, own) in enumerate(zip(configs, places, prepared.words, strict=True), start=1):
            if raw.device.threads is None:
                with open_dict(raw):
                    raw.device.threads = share
            where = {"directory": str(place), "roots": list(map(str, roots)), "number": number, "of": count}
            config = OmegaConf.to_container(raw, resolve=False)
            jobs.append({"config": config, "overrides": own, "plugins": plugins, "audience": told, **where})
        if shows_bar:
            with Steps("jobs", count) as steps:
                Pool(at_once, jobs, steps.advance).run()
        else:
            Pool(at_once, jobs).run()
        return
    for number, (raw, place, own) in enumerate(zip(configs, places, prepared.words, strict=True), start=1):
        with numbered(number, count):
            try:
                code, _ = attempted(raw, place, own, roots)
            except (KfxError, OSError) as error:  # its row says that it is missing
                warnings.warn(f"job {number} of {count}: {error}", stacklevel=3)
                continue
        if code in INTERRUPTED:
            raise KeyboardInterrupt


def compare(
    *runs: str | Path | Run | Sweep | Sequence[str | Path | Run | Sweep],
    by: str | Sequence[str] = ("kernel", "optimizer"),
    metric: str = "accuracy",
    kernel: str = "trained",
    n_interpolation: int | None = None,
    mix: bool = False,
) -> pd.DataFrame:
    """The table of `kfx compare`: means over seeds, `_sd` and `_se` beside them, a row for each value of the keys `by`.

    runs: runs, sweeps, or folders of them, or lists of these. kernel, n_interpolation: which evaluation. mix: average
    runs that differ in more than their seed. ConfigError where there is none to show, or where they differ in more.
    """
    from kfx.record.comparison import collect, table

    every: list[Any] = [each for given in runs for each in (given if isinstance(given, (list, tuple)) else [given])]
    paths = [each.directory if isinstance(each, (Run, Sweep)) else Path(each) for each in every]
    found, left_out = collect(paths, metric, kernel, n_interpolation)
    if not found:
        raise ConfigError(f"kfx compare: no run to show: {'; '.join(left_out[:1]) or 'none was given'}")
    for line in left_out:
        warnings.warn(f"left out: {line}", stacklevel=2)
    return table(found, [by] if isinstance(by, str) else list(by), metric, mix)


def plug_in(*paths: str | Path) -> None:
    """Register the options in these files, as `--plugin` does, for runs, sweeps and estimators of this process."""
    load_plugins(paths)


def _prepared(
    words: Sequence[str],
    plugins: Sequence[str | Path],
    config_dir: str | Path | None,
    smoke: bool,
    *,
    is_sweep: bool,
) -> Prepared:
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{words!r}: expected a list of words, as ['kernel=rbf', 'seed=1']")
    if options := [word for word in words if word.startswith("-")]:
        raise ConfigError(f"{options[0]}: is an option of the command; expected words as kernel=rbf, and keywords")
    load_plugins([plugins] if isinstance(plugins, (str, Path)) else plugins)
    return prepare(list(words), None if config_dir is None else str(config_dir), is_sweep=is_sweep, smoke=smoke)


@contextmanager
def _turns(progress: bool) -> Iterator[None]:
    """One call at a time; what it sets for the process is as before when it ends."""
    audience = Audience.PYTHON if progress else Audience.NOBODY
    with process.exclusively(), told_to(audience), compose.options_in_hydra():
        yield
