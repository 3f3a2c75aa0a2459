"""Compose configs from command-line words by Hydra; errors are one line."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from kfx.config import catalogue, registry
from kfx.config.catalogue import config_folder
from kfx.config.nodes import near, taken
from kfx.config.option import Option
from kfx.config.overrides import quoted
from kfx.config.registry import GROUPS, OPTIONS, SECTIONS
from kfx.experiment import hydra_node
from kfx.experiment.config import Config, as_text, check, first_line, settled
from kfx.experiment.sweeps import parse
from kfx.outcomes import ConfigError
from kfx.version import to_install
from kfx.yaml_file import YamlBoundsError, bounded


def run_name(choices: DictConfig) -> str:
    """The name of a run's folder: the experiment's, or dataset-kernel-optimizer, for own data without a kernel=auto."""
    dataset, kernel, optimizer = (str(choices.get(group)) for group in ("dataset", "kernel", "optimizer"))
    if kernel == "auto":
        is_own = dataset in OPTIONS["dataset"] and OPTIONS["dataset"][dataset].is_own
        kernel = "" if is_own else "rbf"
    return choices.get("experiment") or "-".join(name for name in (dataset, kernel, optimizer) if name)


class _Defaults(ConfigNode):
    """An option's defaults in Hydra's store, which reads `node` when the option is chosen."""

    def __init__(self, group: str, name: str) -> None:
        self.name, self.group, self.package, self.provider = f"{name}.yaml", group, None, "kfx"
        self.option = name

    @cached_property
    def node(self) -> DictConfig:  # type: ignore[override]
        return OmegaConf.structured(OPTIONS[str(self.group)][self.option].defaults())


def give_options_to_hydra() -> list[tuple[str | None, str]]:
    """Register in Hydra the options with their defaults, the sections, and the one resolver that the config files use.

    Returns group and name of those that were new.
    """
    registry.load()
    OmegaConf.register_new_resolver("kfx.run_name", run_name, replace=True)
    store, known = ConfigStore.instance(), ConfigStore.instance().repo
    # There is one a process, and Hydra copies it for each composition: a third of the time.
    store.__deepcopy__ = lambda memo: store  # type: ignore[attr-defined]
    new: list[tuple[str | None, str]] = []
    for group, options in OPTIONS.items():
        for name in options:
            if f"{name}.yaml" not in known.setdefault(group, {}):
                known[group][f"{name}.yaml"] = _Defaults(group, name)
                new.append((group, name))
    if "sections.yaml" not in known:
        sections = {name: schema.defaults() for name, schema in SECTIONS.items() if name}
        store.store("sections", {**SECTIONS[""].defaults(), **sections}, provider="kfx")
        new.append((None, "sections"))
    return new


_turn = threading.RLock()


def _begin_anew() -> None:
    """Make a new lock in a forked child, where nobody would release the old one."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def options_in_hydra() -> Iterator[None]:
    """Within the block Hydra has kfx's options; its earlier state is restored afterwards. Threads take turns."""
    with _turn:
        new = give_options_to_hydra()
        try:
            yield
        finally:
            repo = ConfigStore.instance().repo
            for group, name in new:
                del (repo if group is None else repo[group])[f"{name}.yaml"]
                if group is not None and not repo[group]:
                    del repo[group]


def load(overrides: Sequence[str] = (), search_path: str | None = None) -> Config:
    """Compose and check one job's config. ConfigError: one line with the key, the value found, and the allowed
    values."""
    raw = composed(overrides, search_path)
    check_hydra(raw.hydra, overrides, search_path)
    return check(raw)


def check_hydra(node: DictConfig, overrides: Sequence[str], search_path: str | None) -> None:
    """ConfigError if a `hydra` node, composed from the words, holds a setting that kfx does not allow to change."""
    keys = {word.lstrip("+~").partition("=")[0] for word in overrides}
    others = any("hydra" in key and key.removeprefix("hydra.") not in hydra_node.FOLDERS for key in keys)
    if others or search_path is not None:  # as dataset@hydra.callbacks too; kfx's own presets change nothing else there
        hydra_node.check(node, _usual_hydra_node())


def composed(overrides: Sequence[str], search_path: str | None = None) -> DictConfig:
    """The config that Hydra composes from the words, unchecked, with Hydra's own node."""
    try:
        return _compose(overrides, search_path)
    except ConfigError:
        raise
    except Exception as error:  # any file and any word can be wrong here, with any error
        raise ConfigError(_explain(error, overrides, search_path)) from error


def of_job(overrides: Sequence[str]) -> DictConfig:
    """The config of a run with these words, with what depends on other options set, without Hydra's node."""
    return settled(composed(overrides))[0]


def without_hydra(raw: DictConfig) -> DictConfig:
    """The job's part of a composed config, without Hydra's node."""
    return OmegaConf.masked_copy(raw, [str(key) for key in raw if key != "hydra"])


def with_smoke_words(overrides: Sequence[str], search_path: str | None = None) -> list[str]:
    """The overrides, followed by those in the config's own key `smoke`."""
    return [*overrides, *smoke_words(composed(overrides, search_path))]


def smoke_words(raw: DictConfig) -> list[str]:
    """The overrides under which a composed config ends in seconds; ConfigError if it has none.

    Results under them cannot be compared with a paper's.
    """
    words = raw.get("smoke")
    if not words:
        raise ConfigError("--smoke: this config has no list of overrides under `smoke`; add one to the experiment")
    if not OmegaConf.is_list(words) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"smoke={words}: expected a list of overrides, as [optimizer.iterations=5]")
    for override in parse(list(words)):
        if str(override.key_or_group).startswith("hydra") or override.is_sweep_override():
            raise ConfigError(f"smoke: {override.input_line}: expected a key of the config, with one value")
    return [*words, "published=null"]


def _compose(overrides: Sequence[str], search_path: str | None) -> DictConfig:
    give_options_to_hydra()
    if search_path is not None:
        _check_own(Path(search_path))
    extra = [f"hydra.searchpath=[{quoted(f'file://{Path(search_path).resolve()}')}]"] if search_path else []
    before, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            return compose("config", overrides=[*overrides, *extra], return_hydra_config=True)
    finally:
        GlobalHydra.instance().hydra = before  # restore the Hydra of a program that has its own


def _check_own(folder: Path) -> None:
    """ConfigError for a folder of presets that does not exist, or that has a file with the name of an option, or one
    that is too large."""
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {folder}: is no folder")
    _require_bounds(folder.resolve())
    for group, options in OPTIONS.items():
        for name in options:
            if (path := folder / group / f"{name}.yaml").exists():
                raise ConfigError(f"{path}: {group}={name} is an option already; give the preset another name")


@cache
def _require_bounds(folder: Path) -> None:
    """ConfigError if a preset of a folder, which Hydra's own reader may open, is too large."""
    for path in folder.rglob("*.yaml"):
        try:
            bounded(path)
        except YamlBoundsError as error:
            raise ConfigError(f"{path}: {error}") from error


@cache
def _usual_hydra_node() -> DictConfig:
    return _compose([], None).hydra


def _explain(error: Exception, overrides: Sequence[str], search_path: str | None) -> str:
    """One line for an error of Hydra: the file or the override at fault, and the allowed values."""
    if isinstance(error, yaml.MarkedYAMLError):
        at = f"{error.problem_mark.name}: line {error.problem_mark.line + 1}" if error.problem_mark else "a config file"
        return f"{at.strip()}: {' '.join(str(error.problem or error.context).split())}; mend the file"
    known = [*GROUPS, *(name for name in SECTIONS if name), *SECTIONS[""].fields(), "experiment"]
    for override in parse(overrides):
        key = str(override.key_or_group)
        value = override.value() if override.value_type is not None else None
        group, _, field = key.partition(".")
        if key in catalogue.GROUPS and str(value) not in (options := catalogue.options(key, search_path)):
            return f"{key}={value}: unknown option; it takes {near(str(value), options)}"
        if key == "experiment" and not override.is_add():
            return f"experiment={value}: is not part of the default config; write +experiment={value}"
        if key in ("hydra/launcher", "hydra/sweeper") and (extra := _EXTRAS.get(str(value))):
            return f"{key}={value}: needs a package that is not here; {to_install(extra)}"
        if group not in (*known, "hydra"):
            return f"{key}: unknown key; it takes {near(key, known)}"
        if override.is_add() and not field and group in SECTIONS[""].fields():
            return f"{override.input_line}: is part of every config; write {str(override.input_line).lstrip('+')}"
        if field and f"'{key}'" in str(error):
            schema = _schema_without(override, overrides, search_path)
            if schema is not None and field.split(".")[0] in schema.fields():
                return f"{key}: not there yet; write +{override.input_line}"
            takes = taken(schema, field) if schema else "see kfx run --cfg job"
            return f"{key}: unknown key; {takes}"
        if "${" in str(value) and isinstance(value, (str, list)):
            return f"{override.input_line}: is no interpolation; for the text itself, {as_text(key, value)}"
    return first_line(error)


def _schema_without(override: Override, overrides: Sequence[str], search_path: str | None) -> type[Option] | None:
    """The schema of the group in which an override failed, as composed without this override."""
    group = str(override.key_or_group).partition(".")[0]
    if group in SECTIONS:
        return SECTIONS[group]
    if group not in OPTIONS:
        return None
    try:
        rest = _compose([o for o in overrides if o != override.input_line], search_path)
    except Exception:  # the same error again, or another one
        return None
    node = rest.get(group)
    return OPTIONS[group].get(str(node.get("name"))) if isinstance(node, DictConfig) else None


_EXTRAS = {
    "joblib": "joblib",
    "slurm": "slurm",
    "submitit_slurm": "slurm",
    "submitit_local": "slurm",
    "optuna": "optuna",
}
"""The extras that install Hydra's launchers and sweepers."""


def check_subfolders(nodes: Sequence[DictConfig]) -> None:
    """ConfigError unless each job of a sweep has its own folder."""
    names: dict[str, int] = {}
    for number, node in enumerate(nodes):
        with open_dict(node):
            node.job.num = node.job.id = number
        first = names.setdefault(text_at(node, "sweep.subdir"), number)
        if first != number:
            raise ConfigError(f"hydra.sweep.subdir: is the same for the jobs {first} and {number}; leave it out")


def text_at(node: DictConfig, key: str) -> str:
    """A folder in Hydra's node with its interpolations resolved; ConfigError if that fails, or none is named."""
    try:
        found = OmegaConf.select(node, key, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"hydra.{key}: {first_line(error)}; set it, or write the folder") from error
    if not str(found).strip():
        raise ConfigError(f"hydra.{key}={found}: names no folder; name one, or leave it out")
    return str(found)
