"""`kfx run`: check every job, then run them; Hydra starts the jobs of its own launchers and sweepers."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kfx.commands.arguments import Commands, add_overrides, add_plugins
from kfx.outcomes import ConfigError
from kfx.screen.terminal import show

if TYPE_CHECKING:
    from kfx.jobs.job import Job
    from kfx.jobs.plans import Plans

_USAGE = """\
usage: kfx run [-m] [--smoke] [--cfg job] [--config-dir DIR] [--plugin FILE.py]
               [+experiment=NAME] [group=option] [key=value] …

Runs one experiment, or with -m every combination of comma-separated values.

  -m, --multirun     run a sweep: kfx run -m optimizer=sgd,adam seed=0,1
  --smoke            apply the experiment's list `smoke`: it ends in seconds on embedded data
  --cfg job          print the composed config and stop (also: hydra, all; --resolve, --package)
  --config-dir DIR   look for further options of any group in DIR
  --plugin FILE.py   a Python file with your own options (repeatable)
  -h, --help         this text, and the keys of the options that the other words choose
"""


def add(commands: Commands) -> None:
    """Register the command for help and completion; `run` parses its words, because they are Hydra's."""
    parser = commands.add_parser("run", help="run an experiment or a sweep (kfx run --help shows keys and values)")
    add_overrides(parser)
    add_plugins(parser)
    parser.add_argument("--smoke", action="store_true")
    _add_hydras(parser)


def _add_hydras(parser: argparse.ArgumentParser) -> None:
    """The options of Hydra's own command that kfx takes. Its parser is no public part of it."""
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-p", "--package")
    parser.add_argument("-r", "--run", action="store_true")
    parser.add_argument("-i", "--info", choices=_INFO, const="all", nargs="?")
    parser.add_argument("-cd", "--config-dir")


_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_REFUSED = {
    **dict.fromkeys(("--config-name", "-cn", "--config-path", "-cp"), "kfx has one primary config; use --config-dir"),
    "--experimental-rerun": "would unpickle a file, which can run code; use kfx rerun RUN",
    **dict.fromkeys(("--shell-completion", "-sc"), "is Hydra's; use kfx completion"),
    "--hydra-help": "is Hydra's; use kfx run --help",
}
"""Options of Hydra's own command that are not taken, each with the reason."""


@dataclass
class _Typed:
    """The words of a command: overrides, options of Hydra's, and those that only kfx knows."""

    words: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    plugins: list[str] = field(default_factory=list)
    smoke: bool = False
    help: bool = False


def _typed(words: Sequence[str]) -> _Typed:
    typed, rest = _Typed(), iter(words)
    for word in rest:
        if (option := word.partition("=")[0]) in _REFUSED:
            raise ConfigError(f"{option}: {_REFUSED[option]}")
        if word == "--plugin" or word.startswith("--plugin="):
            path = word.partition("=")[2] if "=" in word else next(rest, "")
            if not path:
                raise ConfigError("--plugin: expected a Python file; see kfx run --help")
            typed.plugins.append(path)
        elif word == "--smoke":
            typed.smoke = True
        elif word in ("-h", "--help"):
            typed.help = True
        else:
            typed.words.append(word)
    return typed


def run(words: Sequence[str]) -> int:
    """Check every job of the command, then run them; return the exit code. ConfigError or DataError, before a folder is
    made, for words that cannot be run."""
    typed = _typed(words)
    from kfx.config.plugins import load_plugins
    from kfx.jobs.plans import plans

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("overrides", nargs="*")
    _add_hydras(parser)
    parser.error = _refuse  # type: ignore[method-assign]
    parsed = parser.parse_intermixed_args(typed.words)
    typed.options, typed.words = _options(parsed), list(parsed.overrides)
    if parsed.multirun and (parsed.cfg is not None or parsed.info or parsed.run):
        raise ConfigError("--cfg, --info, --run: are of one config; leave out -m, and give each key one value")
    if (parsed.cfg is not None) + bool(parsed.info) + parsed.run > 1:
        raise ConfigError("--cfg, --info, --run: expected one of them; leave out the others")
    load_plugins(typed.plugins)
    from kfx.experiment import sweeps

    if typed.help:
        first = next(sweeps.combinations(parsed.overrides, True))
        return _help(first, parsed.config_dir, typed.smoke)
    planned = plans(parsed.overrides, parsed.config_dir, is_sweep=parsed.multirun, smoke=typed.smoke)
    if parsed.cfg is not None or parsed.info:
        if typed.smoke:
            from kfx.experiment import compose

            raw = compose.composed(next(sweeps.combinations(parsed.overrides, False)), parsed.config_dir)
            typed.words += compose.smoke_words(raw)
        return _hand_over(typed, parsed.config_dir)
    folder = planned.make_folder()
    if parsed.multirun:
        return _sweep(typed, parsed.config_dir, planned, folder)
    from kfx.jobs.attempt import run_jobs

    jobs = planned.in_folder(folder)
    code = run_jobs(jobs)
    _predict(jobs)
    return code


def _predict(jobs: Sequence[Job]) -> None:
    """Write the predictions for new rows that the jobs ask for (dataset.predict)."""
    if any(getattr(job.plan.config.dataset, "predict", None) is not None for job in jobs):
        from kfx.estimators.recorded import predict_as_configured

        for job in jobs:
            predict_as_configured(job.plan.config, job.directory)


def _options(parsed: argparse.Namespace) -> list[str]:
    """The options as Hydra takes them, before all overrides; it takes no override after an option that follows one."""
    flags = {"-m": parsed.multirun, "--resolve": parsed.resolve, "--run": parsed.run}
    named = {"cfg": parsed.cfg, "package": parsed.package, "info": parsed.info, "config-dir": parsed.config_dir}
    return [
        *(flag for flag, is_there in flags.items() if is_there),
        *(f"--{name}={value}" for name, value in named.items() if value is not None),
    ]


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}; see kfx run --help")


def _help(overrides: Sequence[str], config_dir: str | None, smoke: bool) -> int:
    """Print the usage, and a table of the chosen options' keys with their present values."""
    from kfx.commands.catalogue import show_fields
    from kfx.config.nodes import plain
    from kfx.config.registry import GROUPS, OPTIONS, SECTIONS, chosen
    from kfx.experiment import compose
    from kfx.experiment.config import typed

    if smoke:
        overrides = compose.with_smoke_words(overrides, config_dir)
    composed = compose.without_hydra(compose.composed(overrides, config_dir))
    typed(composed)
    raw = plain(composed)
    print(_USAGE)
    for group in GROUPS:
        schema = chosen(group, group, raw[group]["name"])
        others = ", ".join(name for name in OPTIONS[group] if name != schema.name)
        print(f"{group}={schema.name}: {schema.description} (others: {others})")
        show_fields(schema, raw[group], column="value")
        print()
    for name, schema in SECTIONS.items():
        print(f"{name}: {schema.description}" if name else schema.description)
        show_fields(schema, raw.get(name, schema.defaults()) if name else raw, column="value")
        print()
    print("kfx list experiment shows the experiments for +experiment=NAME.")
    return 0


def _sweep(typed: _Typed, config_dir: str | None, planned: Plans, folder: Path) -> int:
    """Run the jobs, or those that a sweeper draws; then write `sweep.csv`, also after an interruption."""

    from kfx.jobs import sweep
    from kfx.outcomes import Status
    from kfx.running.signals import noted, undisturbed

    jobs = sweep.expected(planned.in_folder(folder)) if planned.is_complete else None
    sweep.write(folder / "sweep.csv", sweep.rows(jobs or [], []))
    interrupted = False
    with noted() as signals:
        try:
            code = _run_all(typed, config_dir, planned, folder)
        except (KeyboardInterrupt, Exception) as error:  # a library may replace an interruption by its own error
            if isinstance(error, Exception) and not signals:
                raise
            said = isinstance(error, KeyboardInterrupt) and error.args  # raised by a run, with its exit code
            interrupted, code = True, int(said[0]) if said else 128 + signals[0]
        finally:
            with undisturbed():
                rows = sweep.rows(sweep.jobs_in(folder) if jobs is None else jobs, planned.roots(folder))
                sweep.write(folder / "sweep.csv", rows)
                show(sweep.table(rows), 140, stderr=True)
                print(f"kfx: {folder / 'sweep.csv'}", file=sys.stderr)
    if interrupted:
        print(f"kfx: interrupted; go on with {_again(typed, planned.key, str(folder))}", file=sys.stderr)
        return code
    return code if all(row["status"] == Status.COMPLETED for row in rows) else max(code, 1)


def _run_all(typed: _Typed, config_dir: str | None, planned: Plans, folder: Path) -> int:
    """Run the jobs of a sweep in this process, in a pool, or by Hydra; return the exit code, 0 for a pool: `sweep.csv`
    has its failures."""
    from kfx.jobs.attempt import run_jobs
    from kfx.jobs.pool import Pool, processes

    at_once = planned.at_once
    if at_once is None:
        from kfx.config.overrides import quoted
        from kfx.experiment import sweeps

        typed.words = sweeps.as_lists(typed.words)
        typed.words.append(f"{planned.key}={quoted(str(folder))}")  # fix the name, which contains the time
        return _hand_over(typed, config_dir, len(planned.jobs) if planned.is_complete else 0)
    jobs, code = planned.in_folder(folder), 0
    if at_once == 0:
        code = run_jobs(jobs)
    else:
        Pool(processes(at_once), jobs).run()
    _predict(jobs)
    return code


def _again(typed: _Typed, key: str, folder: str) -> str:
    """The command that continues a sweep in its folder, as it can be typed. key: the config key of the folder."""
    from kfx.config.overrides import quoted

    words = [word for word in typed.words if word.partition("=")[0] not in ("resume", key)]
    plugins = [word for path in typed.plugins for word in ("--plugin", path)]
    smoke = ["--smoke"] if typed.smoke else []
    place = f"{key}={folder if re.fullmatch(r'[A-Za-z0-9_./-]+', folder) else quoted(folder)}"
    return shlex.join(["kfx", "run", *plugins, *smoke, *typed.options, *words, "resume=true", place])


def _hand_over(typed: _Typed, config_dir: str | None, jobs: int = 1) -> int:
    """Let Hydra compose again, make the directories and start the jobs. jobs: their number, if it is known."""
    import hydra
    from omegaconf import DictConfig

    from kfx.config.catalogue import config_folder
    from kfx.config.plugins import plugged_in
    from kfx.experiment import compose
    from kfx.jobs import launcher

    plugins, smoke, codes = [asdict(plugin) for plugin in plugged_in()], typed.smoke, [0]

    def job(raw: DictConfig) -> float | None:
        from kfx.jobs.attempt import run_of_hydra

        code, loss = run_of_hydra(raw, jobs, plugins=plugins, config_dir=config_dir, smoke=smoke)
        codes.append(code)
        return loss

    compose.give_options_to_hydra()
    launcher.register()
    launcher.smoke = smoke
    entry = hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(job)
    before = sys.argv
    sys.argv = ["kfx run", *typed.options, *typed.words]
    try:
        entry()
    finally:
        sys.argv = before
    return max(codes)
