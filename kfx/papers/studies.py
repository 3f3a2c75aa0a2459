"""Studies: one question answered by several runs, with a table and a picture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import yaml
from omegaconf import OmegaConf

from kfx.config import catalogue
from kfx.config.fields import Several, nested, ranged, word
from kfx.config.nodes import make, near
from kfx.config.option import Option, Settings
from kfx.config.plugins import load_plugins, plugged_in
from kfx.config.published import Quantity
from kfx.experiment.config import check
from kfx.files import Document
from kfx.jobs.job import Job
from kfx.outcomes import ConfigError
from kfx.papers.logged import logged
from kfx.papers.pictures import NEEDS_X, PICTURES
from kfx.record.reading import load_run, typed_words
from kfx.report.measured import applicable, measured_as
from kfx.yaml_file import read_yaml

_INITIAL = " of the initial kernel"


def _runs(path: str, value: Several) -> dict[str, list[str]]:
    whole = isinstance(value, Mapping) and value and all(isinstance(words, list) for words in value.values())
    if not whole or not all(isinstance(word, str) for words in value.values() for word in words):
        raise ConfigError(f"{path}={value}: expected a name and a list of words of kfx run for each run")
    folders: dict[str, str] = {}
    for name in map(str, value):
        if (other := folders.setdefault(_folder(name), name)) != name:
            raise ConfigError(f"{path}: {other} and {name}: would share a folder; name them otherwise")
    return {str(name): list(words) for name, words in value.items()}


def _folder(name: str) -> str:
    """The folder name of a run."""
    return re.sub(r"[^\w.=-]+", "_", name).lstrip(".") or "_"


@dataclass
class Known(Option):
    """A number that a paper prints for a run of a study."""

    run: str = ranged("", "a run's name", lambda v: v != "", "name of the run")
    column: str = ranged("", "a column's name", lambda v: v != "", "column of the table")
    value: float = ranged(0.0, "a number", lambda v: True, "number that the paper prints")
    source: str = ranged("", "text", lambda v: v != "", "paper, table or figure")


def _known(path: str, value: Several) -> list[Known]:
    if not isinstance(value, list):
        raise ConfigError(f"{path}={value}: expected a list of {{run: …, column: …, value: …, source: …}}")
    return [make(f"{path}[{i}]", Known, each) for i, each in enumerate(value)]


@dataclass
class Study(Option):
    """The content of a file of the group `study`."""

    cells: str = ranged("", "a module's name", lambda v: True, "module of kfx.criteria that measures, in place of runs")
    settings: Settings = field(default_factory=dict, metadata={"meaning": "settings of the cells"})
    smoke: Settings = field(default_factory=dict, metadata={"meaning": "settings with which they end in seconds"})
    runs: Several = nested(  # noqa: RUF009
        None,
        "a name and a list of words for each run",
        _runs,
        "words of each run by its name, in the order of the table",
    )
    words: list[str] = field(
        default_factory=list, metadata={"meaning": "words that all runs share, placed before their own"}
    )
    plugins: list[str] = field(
        default_factory=list, metadata={"meaning": "plugin files that the runs need, beside this file"}
    )
    published: Several = nested(  # noqa: RUF009
        [], "a list of run, column, value and source", _known, "numbers that a paper prints for cells of the table"
    )
    columns: list[str] = field(
        default_factory=list, metadata={"meaning": "metrics and parameters that the table shows of each run"}
    )
    picture: str = word(("none", *PICTURES), "picture drawn from all runs")
    x: str = ranged(
        "",
        "text",
        lambda v: True,
        "quantity that the picture shows; with picture=scaling: key that varies between the runs",
    )
    y: list[str] = field(default_factory=list, metadata={"meaning": "with picture=scaling: columns drawn against x"})


def names() -> list[str]:
    """The names of all studies."""
    return catalogue.options("study")


def is_of_cells(name: str) -> bool:
    """Whether cells measure a study, in place of runs. Its plugins are not loaded."""
    return "cells" in (read_yaml(catalogue.file_of("study", name)) or {})


def read(name: str) -> Study:
    """Read a study by its name; ConfigError if it does not exist or its file is wrong."""
    if name not in names():
        raise ConfigError(f"{name}: unknown study; it takes {near(name, names())}")
    path = catalogue.file_of("study", name)
    content = read_yaml(path) or {}
    if not isinstance(content, Mapping) or not ("cells" in content or (content.get("runs") and content.get("columns"))):
        raise ConfigError(f"{path}: expected runs and columns at least, or cells")
    study: Study = make(str(path), Study, content)
    if study.picture in NEEDS_X and not study.x:
        raise ConfigError(f"{path}: picture={study.picture}: needs x, what stands on its axis")
    study.plugins = [str(path.parent / name) for name in study.plugins]
    load_plugins(study.plugins)
    study.runs = {label: [*study.words, *words] for label, words in (study.runs or {}).items()}
    for words in study.runs.values():
        refused = [word for word in words if word.startswith(("hydra.", "--"))]
        if refused:
            raise ConfigError(f"{path}: {refused[0]}: where a run goes, and its plugins, are the study's to say")
    for known in study.published:
        if known.run not in study.runs or known.column not in study.columns:
            raise ConfigError(f"{path}: published: {known.run}, {known.column}: is no run and column of the study")
    return study


def jobs(study: Study, folder: Path, more: Sequence[str] = (), *, smoke: bool = False) -> dict[str, Job]:
    """The runs of a study by name, composed and checked, each in its own folder.

    more: further words for all runs. smoke: apply each config's list `smoke`. ConfigError for words that are wrong.
    """
    plugins = [
        plugin for plugin in plugged_in() if plugin.path in {str(Path(path).resolve()) for path in study.plugins}
    ]
    made = {
        label: logged([*words, *more], folder / _folder(label) / "run", smoke=smoke, plugins=plugins)
        for label, words in study.runs.items()
    }
    for job in made.values():
        if study.picture == "scaling" and not isinstance(OmegaConf.select(job.plan.raw, study.x), (int, float)):
            raise ConfigError(f"study: x={study.x}: is no key with a number")
    return made


def table(study: Study, directories: Mapping[str, Path], *, is_as_published: bool = True) -> pd.DataFrame:
    """A row for each run: its columns as measured, each beside the number printed in the study or the experiment.

    is_as_published: whether the runs have the settings of the printed numbers.
    """
    rows = []
    for label, directory in directories.items():
        run = load_run(directory)
        printed = applicable(check(run.config), typed_words(directory))
        row: Document = {"run": label}
        for column in study.columns:
            metric = column.removesuffix(_INITIAL)
            wanted = Quantity(metric, "trained" if metric == column else "initial")
            row[column] = measured_as(wanted, run.metrics, directory)
            known = [each.value for each in study.published if (each.run, each.column) == (label, column)]
            known += [each.value for each in printed if each.place == wanted.place and each.value is not None]
            row[f"{column}, published"] = known[0] if known and is_as_published else None
        rows.append(row)
    frame = pd.DataFrame(rows)
    return frame.drop(
        columns=[name for name in frame if str(name).endswith(", published") and frame[name].isna().all()]
    )


def with_settings(study: Study, more: Sequence[str] = (), *, smoke: bool = False) -> Document:
    """The settings of a study of cells, with those of `key=value` in their place; ConfigError for an unknown key."""
    settings = {**study.settings, **(study.smoke if smoke else {})}
    for given in more:
        key, equals, value = given.partition("=")
        if not equals or key not in settings:
            raise ConfigError(f"--set {given}: expected KEY=VALUE with KEY one of {', '.join(settings)}")
        settings[key] = yaml.safe_load(value)
    return settings


def dated(frame: pd.DataFrame, made: Iterable[Mapping[str, str]]) -> pd.DataFrame:
    """The table with the date, the version of kfx and the machine of each row, as `made_on` gives them."""
    made = list(made)
    return frame.assign(**{key: [each[key] for each in made] for key in ("date", "kfx", "machine")})
