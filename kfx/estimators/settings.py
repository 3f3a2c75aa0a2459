"""Make the config of a run from an estimator's parameters: names, settings or objects."""

from __future__ import annotations

import copy
import json
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Unpack, cast

import numpy as np
from omegaconf import OmegaConf

from kfx.config.choices import STEPS, TARGETS
from kfx.config.fields import Several
from kfx.config.nodes import make_option, near
from kfx.config.option import Option, Settings
from kfx.config.overrides import escaped
from kfx.config.registry import OPTIONS, SECTIONS, chosen, load
from kfx.data.own_options import OwnDataset
from kfx.estimators.parameters import EVALUATION, GROUPS, NESTED, Chosen
from kfx.experiment.compose import composed, options_in_hydra, without_hydra
from kfx.experiment.config import Config, typed
from kfx.kernels.base import Kernel
from kfx.kernels.kernel_option import Image, KernelOption
from kfx.numerics.regularization import Regularization
from kfx.objectives.options import ObjectiveOption
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    from kfx.data.dataset import Dataset
    from kfx.data.preparation import Preparation
    from kfx.kernels.parameters import Training
    from kfx.objectives.base import Function

_SOLVERS = ("auto", "cholesky", "nystrom")


def as_config(
    settings: Settings,
    shape: tuple[int, ...],
    image: Image,
    has_classes: bool,
    targets: str,
    preprocess: list[str] | None,
    seed: int,
    *,
    has_weights: bool = False,
) -> Config:
    """The checked config of a run with these settings on points of this shape; ConfigError in one line for a wrong
    setting.

    targets, preprocess: as `dataset.targets` and `dataset.preprocess`.
    """
    if settings["solver"] not in _SOLVERS:
        raise ConfigError(f"solver={settings['solver']!r}: expected {', '.join(_SOLVERS[:-1])} or {_SOLVERS[-1]}")
    if targets not in ("auto", *TARGETS):
        raise ConfigError(f"targets={targets!r}: expected auto, {', '.join(TARGETS)}")
    content = dict(_plain_usual())
    objects: Settings = {"dataset": _Given(shape, image, has_classes, targets, preprocess, has_weights)}
    for name in NESTED:
        value = settings.get(name)
        if _is_object(value):
            objects[name] = _as_option(name, value)
        elif value is not None:
            content[name] = _node(name, value)
    own = {name: settings[name] for name in (*EVALUATION, "n_interpolation")}
    content["evaluation"] = {**content["evaluation"], **_in_python(own)}
    for name in [name for name in objects if isinstance(objects[name], Mapping)]:
        content[name] = {**content[name], **objects.pop(name)}
    config = replace(_typed(content), **objects, seed=seed)
    config.settle()
    if config.optimizer.moves_points:
        config.flow.record_layers = True  # new points go through the layers
    if image is None and config.kernel.images_only:
        raise ConfigError(
            f"kernel={config.kernel.name}: takes images; set image_shape=(channels, height, width), or give X in four "
            "dimensions"
        )
    config.check_together()
    return config


def steps_of(scale: str | Sequence[str] | None, kernel: object) -> list[str] | None:
    """As `dataset.preprocess`, of an estimator's `scale`; ConfigError for a wrong one."""
    if scale is None or (scale == "auto" and not isinstance(kernel, str | Mapping)):
        return []
    if scale == "auto":
        return None
    if isinstance(scale, str) or not set(scale) <= set(STEPS):
        raise ConfigError(f"scale={scale!r}: expected auto, None or a list of {', '.join(STEPS)}")
    return list(scale)


def sizes_of(n_interpolation: object, n: int) -> list[int] | None:
    """As `evaluation.n_interpolation`, of an estimator's with n points; ValueError for a wrong one."""
    if n_interpolation is None:
        return None
    if not (isinstance(n_interpolation, numbers.Integral) and 1 <= int(n_interpolation) <= n):
        raise ValueError(f"n_interpolation={n_interpolation}: expected a whole number from 1 to {n}, or None for all")
    return [int(n_interpolation)]


def kernel_option(value: Chosen) -> KernelOption:
    """The option of a kernel that is given by its name, or by settings with a name; ConfigError for a wrong one."""
    return cast(KernelOption, make_option("kernel", "kernel", _node("kernel", value)))


def settings_of(name: str, value: object) -> Settings:
    """The settings of a parameter by name: fields of an option, or a kernel's parameters.

    Empty for a wrong value, which is reported when it is used.
    """
    if isinstance(value, Kernel):
        return dict(value.parameters)
    if isinstance(value, Option):
        return {key: getattr(value, key) for key in value.fields()}
    if isinstance(value, Regularization):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if callable(value):
        return {}
    try:
        node = _node(name, value) if value is not None else _plain_usual()[name]
    except (ConfigError, TypeError, ValueError):
        return {}
    return {key: setting for key, setting in node.items() if key != "name"}


def modules_of(group: str, value: object) -> set[str]:
    """The modules of the options that a parameter names, including options within options."""
    if isinstance(value, str):
        return {OPTIONS[group][value].__module__} if value in OPTIONS[group] else set()
    within = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return {module for each in within for module in modules_of(group, each)}


def with_settings(name: str, value: object, changes: Settings) -> object:
    """The same parameter with other settings; ValueError names the allowed ones."""
    known = settings_of(name, value)
    if not known and isinstance(value, (str, Mapping)):
        _node(name, value)  # raises an error that says what is wrong
    for key in changes:
        if key not in known:
            raise ValueError(f"invalid parameter {name}__{key}: {name} takes {near(key, sorted(known))}")
    changes = {key: new for key, new in changes.items() if not _is_same(known[key], new)}  # leave defaults out
    if not changes:
        return value
    if isinstance(value, Kernel):
        return value.with_parameters(**changes)
    if isinstance(value, (Option, Regularization)):
        return replace(value, **changes)
    own = _own_settings(value)
    named = {"name": value} if isinstance(value, str) and name in GROUPS else {}
    return {**named, **own, **changes}


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and bool(np.all(one == other))


# ---- names and partial settings


def _typed(content: Settings) -> Config:
    """The typed config of plain settings, by names of options; the same settings are checked once in a process."""
    options = tuple(OPTIONS[group].get(content[group].get("name")) for group in OPTIONS)
    try:
        return copy.deepcopy(_typed_once(json.dumps(content), options))
    except TypeError:  # a value that JSON cannot hold: the check reports it
        return typed(OmegaConf.create(escaped(content)))


@lru_cache(maxsize=64)
def _typed_once(content: str, options: tuple[type[Option] | None, ...]) -> Config:
    """options: the options behind the names, so that another plugin's option of the same name is not used."""
    return typed(OmegaConf.create(escaped(json.loads(content))))


@cache
def _plain_usual() -> Settings:
    """All default settings; not to be changed."""
    with options_in_hydra():
        content = OmegaConf.to_container(without_hydra(composed([])), resolve=True)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


@cache
def _usual_option(group: str, name: str) -> Settings:
    """The default settings of an option, or of a preset."""
    if name not in OPTIONS[group]:
        try:
            with options_in_hydra():
                content = OmegaConf.to_container(composed([f"{group}={name}"])[group], resolve=True)
        except ConfigError:
            chosen(group, group, name)
            raise
        assert isinstance(content, dict)
        return {str(key): value for key, value in content.items()}
    return dict(OPTIONS[group][name].defaults())


def _own_settings(value: object) -> Settings:
    """The settings that a person gave beside the name."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str) or value is None or _is_object(value):
        return {}
    return {"value": value}  # the section regularization


def _in_python(value: object) -> Several:
    """The value without NumPy's types, which occur in the grids of searches."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_in_python(each) for each in value]
    return {key: _in_python(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def _node(name: str, value: object) -> Settings:
    load()
    value = _in_python(value)
    if name not in GROUPS:
        usual = _plain_usual()[name]
        if isinstance(value, str) and name == "regularization":
            return {**usual, "selection": value}
        if not isinstance(value, Mapping) and name != "regularization":
            raise ConfigError(f"{name}={value}: expected settings by name, as {{{', '.join(SECTIONS[name].fields())}}}")
        return {**usual, **_own_settings(value)}
    own = _own_settings(value)
    option = value if isinstance(value, str) else own.pop("name", _plain_usual()[name]["name"])
    if not isinstance(value, (str, Mapping)) or not isinstance(option, str):
        raise ConfigError(f"{name}={value!r}: expected a name, settings with a name, or an object")
    usual = _usual_option(name, option)
    if isinstance(own.get("bounds"), Mapping):
        own["bounds"] = {**usual.get("bounds", {}), **own["bounds"]}
    return {**usual, **own}


# ---- objects


def _is_object(value: object) -> bool:
    return isinstance(value, (Kernel, Option, Regularization)) or callable(value)


def _as_option(parameter: str, value: Several) -> object:
    load()
    if callable(value) and parameter != "objective":
        raise ConfigError(f"{parameter}={value!r}: expected a name, settings with a name, or an object")
    if isinstance(value, Kernel):
        return _GivenKernel(value)
    if isinstance(value, Regularization):
        return {"value": value.value, "scale": value.scale}
    if isinstance(value, Option):
        return value
    name = getattr(value, "__name__", "")  # kfx's own objectives have their own option
    is_own = getattr(value, "__module__", "").startswith("kfx.objectives") and name in OPTIONS["objective"]
    return OPTIONS["objective"][name]() if is_own else _GivenObjective(value)


class _Given(OwnDataset):
    """Points that are in memory."""

    group, name = "dataset", "given"

    def __init__(
        self,
        shape: tuple[int, ...],
        image: Image,
        has_classes: bool,
        targets: str,
        preprocess: list[str] | None,
        has_weights: bool,
    ) -> None:
        self.shape, self.n_train, self.n_test = shape, shape[0], None
        self.preprocess, self.targets = preprocess, targets
        self.image, self.has_classes, self.pool = image, has_classes, shape[0]  # type: ignore[misc]
        self.weights = "sample_weight" if has_weights else None  # type: ignore[misc]

    def feature_count(self) -> int:
        return math.prod(self.shape[1:])

    def build(self, rng: np.random.Generator) -> Dataset:
        raise TypeError("points that are given are not built")

    def preprocessed(self, data: Dataset, how: Preparation | None = None) -> Dataset:
        from kfx.data.dataset import imputed

        return super().preprocessed(imputed(data, "auto"), how)


@dataclass
class _GivenKernel(KernelOption):
    """A kernel that is given as an object."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    @property
    def name(self) -> str:  # type: ignore[override]
        return type(self.kernel).__name__

    def make(self, image: Image, **common: Unpack[Training]) -> Kernel:
        return self.kernel


class _GivenObjective(ObjectiveOption):
    """An objective that is given as a function."""

    name = "given"

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def build(self) -> Function:
        return self.function
