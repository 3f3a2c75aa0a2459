"""A composed config, typed and checked: keys, ranges and combinations; an error is one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar.gen.OmegaConfGrammarParser import OmegaConfGrammarParser
from omegaconf.grammar_parser import parse

from kfx.config import registry
from kfx.config.fields import Several
from kfx.config.nodes import leaves, make, make_option, near
from kfx.config.option import Option, Settings
from kfx.config.overrides import escaped, literal
from kfx.config.overrides import typed as override
from kfx.config.parts import ConfigView
from kfx.config.plugins import in_plugin
from kfx.config.registry import GROUPS, OPTIONS, SECTIONS
from kfx.outcomes import ConfigError, DataError, KfxError

if TYPE_CHECKING:
    from kfx.config.published import Published
    from kfx.data.options import DatasetOption
    from kfx.data.outputs_option import OutputsSection
    from kfx.evaluation.follow_option import FollowSection
    from kfx.evaluation.options import EvaluationOption
    from kfx.experiment.options import CheckpointSection, ClusterSection, DeviceOption
    from kfx.flows.options import FlowSection, InterpolationSection
    from kfx.kernels.kernel_option import KernelOption
    from kfx.objectives.options import ObjectiveOption, RegularizationSection
    from kfx.optimizers.options import OptimizerOption
    from kfx.sampling.options import SamplerOption


@dataclass
class Config(ConfigView):
    """The config of a whole run: the option of each group, the sections, and the run's own keys."""

    dataset: DatasetOption
    kernel: KernelOption
    objective: ObjectiveOption
    sampler: SamplerOption
    optimizer: OptimizerOption
    evaluation: EvaluationOption
    device: DeviceOption
    regularization: RegularizationSection
    outputs: OutputsSection
    checkpoint: CheckpointSection
    cluster: ClusterSection
    flow: FlowSection
    follow: FollowSection
    interpolation: InterpolationSection
    seed: int
    figures: list[str]
    report: bool
    resume: bool
    retries: int
    kernel_check: bool
    published: list[Published]
    smoke: list[str]

    def options(self) -> Iterator[Option]:
        """Yield the options and sections in the order in which they are checked against each other."""
        first = ("evaluation", "sampler", "optimizer", "kernel", "regularization")
        names = (*first, *(name for name in (*GROUPS, *SECTIONS) if name and name not in first))
        return (getattr(self, name) for name in names)

    def settle(self) -> Settings:
        """Set what depends on other options, as `objective=auto` and null fields; return it by key, as `kernel.ard`."""
        found: Settings = {}
        for name in (*GROUPS, *(name for name in SECTIONS if name)):
            given = getattr(self, name)
            option = given.standing_for(self)
            if option is not given:
                setattr(self, name, option)
                found[name] = {"name": option.name, **_plain(option)}
            for field, value in option.settled(self).items():
                setattr(option, field, value)
                found[f"{name}.{field}"] = _plain(value) if isinstance(value, Option) else value
        return found

    def check_together(self) -> None:
        """ConfigError if one option cannot be combined with the others, or the data are too few for it."""
        try:
            for option in self.options():
                option.check_together(self)
                if option is self.evaluation:
                    self.check_sizes(self.dataset.size())
        except DataError as error:
            raise ConfigError(str(error)) from error

    def check_sizes(self, n: int) -> None:
        """ConfigError if n training points, or a fold of them, are too few for a batch, an interpolation or centres."""
        n, is_followed = self.evaluation.fold_size(n), self.follow.every + self.follow.last > 0
        wanted = {
            "evaluation.centres": [self.evaluation.centres or 0],
            "evaluation.n_interpolation": self.evaluation.n_interpolation or [2],
            "sampler.batch_size": [self.sampler.batch_size or 2],
            "follow.n_interpolation": (self.follow.n_interpolation or [2]) if is_followed else [0],
        }
        for key, sizes in wanted.items():
            if (most := max(sizes)) > n:
                has = f"dataset {self.dataset.name} has {n} training points"
                raise ConfigError(f"{key}={most}: {has}; take at most {n}")

    def training_size(self) -> int:
        """The number of points that a kernel is trained on, as far as it is known before the data are read."""
        return self.evaluation.fold_size(self.dataset.size())


def _plain(option: Option) -> Settings:
    return {key: getattr(option, key) for key in option.fields()}


def check(raw: DictConfig) -> Config:
    """Build the typed config; ConfigError in one line: the key, the value found, and the allowed values.

    Hydra's own node is checked by `kfx.experiment.hydra_node`.
    """
    return settled(raw)[1]


def settled(raw: DictConfig) -> tuple[DictConfig, Config]:
    """The config with the fields whose default depends on other options, plain and typed; errors as for `check`.

    The plain one holds no interpolations.
    """
    content = _resolved(raw)
    config, whole = _typed(content), OmegaConf.create(escaped(content))
    with in_one_line(config):
        changes = config.settle()
        config.check_together()
    for key, value in changes.items():
        OmegaConf.update(whole, key, escaped(value), merge=False)
    return whole, config


def typed(raw: DictConfig) -> Config:
    """The typed config: every key exists and every value is in its range. Data files are not read."""
    return _typed(_resolved(raw))


def _typed(content: Settings) -> Config:
    registry.load()
    general = SECTIONS[""]
    sections = {name: schema for name, schema in SECTIONS.items() if name}
    known = (*GROUPS, *sections, *general.fields())
    for key in content:
        if key not in known:
            raise ConfigError(f"{key}: unknown key; it takes {near(key, sorted(known))}")
    parts: Settings = {group: make_option(group, group, content.get(group)) for group in OPTIONS}
    for name, schema in sections.items():
        parts[name] = make(name, schema, content.get(name, {}))
    own = make("", general, {**general.defaults(), **{k: v for k, v in content.items() if k in general.fields()}})
    return Config(**parts, **{name: getattr(own, name) for name in general.fields()})


def with_absolute_paths(raw: DictConfig, config: Config) -> DictConfig:
    """The config with absolute paths, as a record needs it."""
    own = OmegaConf.to_container(raw.dataset, resolve=True)
    assert isinstance(own, dict)
    moved = raw.copy()
    moved.dataset = escaped(config.dataset.with_absolute_paths({str(key): value for key, value in own.items()}))
    if config.evaluation.store is not None:
        moved.evaluation.store = escaped(os.path.abspath(config.evaluation.store))
    return moved


def sources(config: Config) -> dict[str, str]:
    """`group=option` → where the option comes from, for each chosen option that is not kfx's, options within options
    included."""
    chosen = [option for group in (*GROUPS, "interpolation") for option in _within(getattr(config, group))]
    return {f"{option.group}={option.name}": option.origin for option in chosen if option.origin != "kfx"}


@contextmanager
def in_one_line(config: Config) -> Iterator[None]:
    """Within the block, an unexpected error is a ConfigError if options of the config are not kfx's: their code may
    raise anything."""
    try:
        yield
    except KfxError:
        raise
    except Exception as error:
        if (why := of_outside(error, config)) is None:
            raise
        raise ConfigError(why) from error


def of_outside(error: Exception, config: Config) -> str | None:
    """An unexpected error in one line, with the options of the config that are not kfx's; None if all are."""
    outside = sources(config)
    return f"{', '.join(outside)}: {in_plugin(error) or registry.described(error)}" if outside else None


def _within(value: object) -> Iterator[Option]:
    """An option, and the options in its fields at any depth."""
    if isinstance(value, Option):
        yield value
        for name in value.fields():
            yield from _within(getattr(value, name))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _within(each)


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    shown = lines[:2] if lines and lines[0].endswith(":") else lines[:1]
    return " ".join(shown) or type(error).__name__


def _resolved(raw: DictConfig) -> Settings:
    """The job's part of a config as plain keys and values, with interpolations resolved and nothing missing."""
    own = raw  # where it can be: copies of long lists take a while
    if "hydra" in raw:
        own = OmegaConf.masked_copy(raw, [str(key) for key in raw if key != "hydra"])
    unresolved = OmegaConf.to_container(own, resolve=False)
    for path, value in leaves(unresolved):
        if isinstance(value, str) and "${" in value and (wrong := _wrong_in(value, own, path)):
            key = path.partition("[")[0]
            given = dict(leaves(unresolved, into_lists=False))[key]
            raise ConfigError(f"{path}={value}: {wrong}; write the value; for the text itself, {as_text(key, given)}")
    try:
        content = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or 'config'}: {first_line(error)}; write the value") from error
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def as_text(key: str, given: Several) -> str:
    """How a text, or a list of texts, is typed in a shell if `${` in it begins no interpolation."""
    if all(isinstance(each, str) for each in given):
        return f"type {override(key, literal(given))}"
    return "write \\${ in place of ${"


def _wrong_in(value: str, config: DictConfig, path: str) -> str | None:
    """What is wrong with the interpolations of a value at this path; None if they name keys.

    One that calls a resolver, such as that which reads environment variables, is not called.
    """
    try:
        if _calls_resolver(value):
            return "an interpolation may name a key, not call a resolver"
        OmegaConf.select(config, path)
    except OmegaConfBaseException as error:
        return first_line(error)
    return None


def _calls_resolver(value: str) -> bool:
    """Whether a value calls a resolver at any depth of its interpolations."""
    waiting: list[object] = [parse(value)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, OmegaConfGrammarParser.InterpolationResolverContext):
            return True
        waiting += getattr(node, "children", None) or []
    return False
