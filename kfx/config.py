"""From command-line words to a checked `Config`: composition by Hydra, one-line errors by kfx."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar.gen.OmegaConfGrammarParser import OmegaConfGrammarParser
from omegaconf.grammar_parser import parse

from kfx import hydra_node
from kfx.outcomes import ConfigError, DataError
from kfx.schema import (
    FLOWS,
    FORMATS,
    NETWORK_PARTS,
    OPTIONS,
    SINGLE,
    CombinationNode,
    Config,
    FieldError,
    KFold,
    Node,
    Table,
    TestPoints,
)

GROUPS = ("dataset", "kernel", "objective", "sampler", "optimizer", "evaluation", "device", "experiment")


_MOST_SHOWN = 30
_MOST_JOBS = 10_000  # of a sweep: each is composed and checked before the first begins


def config_folder() -> Path:
    """`kfx/configs` in a wheel, the top-level `configs` beside the package in a checkout."""
    package = Path(__file__).resolve().parent
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def options(group: str, own: str | None = None) -> list[str]:
    """Every option of a group, by its name on the command line, with those of a folder of one's own. A leading
    underscore marks a part of others."""
    found = set()
    for folder in _folders(group, own):
        paths = [path.relative_to(folder) for path in folder.rglob("*.yaml") if not path.name.startswith("_")]
        found |= {path.with_suffix("").as_posix() for path in paths}
    return sorted(found)


def description(group: str, option: str, own: str | None = None) -> str:
    """The first comment of an option's file that is not a directive: its one-line description."""
    path = next(path for folder in _folders(group, own) if (path := folder / f"{option}.yaml").is_file())
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("#") and not line.startswith("# @"):
            return line.lstrip("# ")
    return ""


def _folders(group: str, own: str | None) -> list[Path]:
    """Where a group's options lie; kfx's own come first, as in Hydra's search path."""
    if own is not None and not Path(own).is_dir():
        raise ConfigError(f"--config-dir {own}: is no folder")
    return [config_folder() / group, *([Path(own) / group] if own is not None else [])]


def run_name(choices: DictConfig) -> str:
    """The experiment's name, or dataset-kernel-optimizer: the folder of a run."""
    return choices.get("experiment") or "-".join(str(choices.get(g)) for g in ("dataset", "kernel", "optimizer"))


def register_resolvers() -> None:
    """The one resolver that the config files use."""
    OmegaConf.register_new_resolver("kfx.run_name", run_name, replace=True)


# ---- composition


def combinations(overrides: Sequence[str], multirun: bool) -> Iterator[list[str]]:
    """The overrides of each job of a multirun; of the one job otherwise."""
    parsed = _parse(overrides)
    alternatives: dict[str, list[str]] = {}
    for override in parsed:
        key = override.get_key_element()
        if override.is_sweep_override():
            if not multirun:
                raise ConfigError(f"{override.input_line}: several values need a multirun: kfx run -m …")
            if not override.is_discrete_sweep():
                if any(str(other.key_or_group) == "hydra/sweeper" for other in parsed):
                    continue  # that sweeper draws it while it runs
                raise ConfigError(f"{override.input_line}: the basic sweeper takes lists; write {key}=a,b,c")
            try:
                values = itertools.islice(override.sweep_string_iterator(), _MOST_JOBS + 1)
                alternatives[key] = [f"{key}={value}" for value in values]
            except (HydraException, ValueError, ArithmeticError, MemoryError) as error:
                raise ConfigError(f"{override.input_line}: {_first_line(error)}; write {key}=a,b,c") from error
            if not alternatives[key]:
                raise ConfigError(f"{override.input_line}: holds no value; write {key}=a,b,c")
        else:
            alternatives[key] = [str(override.input_line)]
    jobs = math.prod(map(len, alternatives.values()))
    if jobs > _MOST_JOBS:
        raise ConfigError(f"-m: a sweep has at most {_MOST_JOBS} jobs, this one has more; split it")
    for choice in itertools.product(*alternatives.values()):
        yield list(choice)


def without_sweeps(overrides: Sequence[str]) -> list[str]:
    """The overrides that all jobs of a multirun share: what Hydra composes its own settings from."""
    return [str(override.input_line) for override in _parse(overrides) if not override.is_sweep_override()]


def _parse(overrides: Sequence[str]) -> list[Override]:
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(f"cannot read {_first_line(error)}; write key=value") from error
    if any(str(override.key_or_group) == "hydra.searchpath" for override in parsed):  # it may import a package
        raise ConfigError("hydra.searchpath: use --config-dir DIR for options of your own")
    return parsed


def load(overrides: Sequence[str] = (), search_path: str | None = None) -> Config:
    """Compose and check one job's config. ConfigError: one line with the key, what it got, and what it takes."""
    return check(composed(overrides, search_path))


def composed(overrides: Sequence[str], search_path: str | None = None) -> DictConfig:
    """The config that Hydra will hand to the job, before the checks, with Hydra's own node."""
    try:
        return _compose(overrides, search_path)
    except ConfigError:
        raise
    except Exception as error:  # files and words of any kind come through here, and so do errors
        raise ConfigError(_explain(error, overrides, search_path)) from error


def _compose(overrides: Sequence[str], search_path: str | None) -> DictConfig:
    register_resolvers()
    if search_path is not None and not Path(search_path).is_dir():
        raise ConfigError(f"--config-dir {search_path}: is no folder")
    extra = [f"hydra.searchpath=[{quoted(f'file://{Path(search_path).resolve()}')}]"] if search_path else []
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose("config", overrides=[*overrides, *extra], return_hydra_config=True)


def check_hydra(node: DictConfig) -> None:
    """ConfigError if a composed `hydra` node holds what kfx does not let a config change."""
    hydra_node.check(node, _usual_hydra_node())


@cache
def _usual_hydra_node() -> DictConfig:
    return _compose([], None).hydra


def _explain(error: Exception, overrides: Sequence[str], search_path: str | None) -> str:
    """One line for what Hydra refused: the file or the override at fault, and what it takes."""
    if isinstance(error, yaml.MarkedYAMLError):
        at = f"{error.problem_mark.name}: line {error.problem_mark.line + 1}" if error.problem_mark else "a config file"
        return f"{at.strip()}: {' '.join(str(error.problem or error.context).split())}; mend the file"
    known = [*OPTIONS, *SINGLE, "seed", "kernel_check", "resume", "figures", "retries", "experiment"]
    for override in _parse(overrides):
        key = str(override.key_or_group)
        value = override.value() if override.value_type is not None else None
        group, _, field = key.partition(".")
        if key in GROUPS and str(value) not in (known_options := options(key, search_path)):
            return f"{key}={value}: unknown option; it takes {_near(str(value), known_options)}"
        if key == "experiment" and not override.is_add():
            return f"experiment={value}: is not part of the default config; write +experiment={value}"
        if key in ("hydra/launcher", "hydra/sweeper") and (extra := _EXTRAS.get(str(value))):
            return f"{key}={value}: needs a package that is not here; pip install 'kfx[{extra}]'"
        if group not in (*known, "hydra"):
            return f"{key}: unknown key; it takes {_near(key, known)}"
        if key == "kernel_check" and not override.is_add():
            return f"kernel_check={value}: it is not part of the default config; write +kernel_check={value}"
        if field and f"'{key}'" in str(error):
            node = _schema_without(override, overrides, search_path)
            if node is not None and field.split(".")[0] in _fields(node):
                return f"{key}: not there yet; write +{override.input_line}"
            takes = f"it takes {_near(field, list(_fields(node)))}" if node else "see kfx run --cfg job"
            return f"{key}: unknown key; {takes}"
    return _first_line(error)


def _schema_without(override: Override, overrides: Sequence[str], search_path: str | None) -> type[Node] | None:
    """The schema of the group that an override failed in, had it not been there."""
    group = str(override.key_or_group).partition(".")[0]
    if group in SINGLE:
        return SINGLE[group]
    if group not in OPTIONS:
        return None
    try:
        rest = _compose([o for o in overrides if o != override.input_line], search_path)
    except Exception:  # the same error again, or the next
        return None
    node = rest.get(group)
    return OPTIONS[group].get(node.get("name")) if isinstance(node, DictConfig) else None


_EXTRAS = {
    "joblib": "joblib",
    "slurm": "slurm",
    "submitit_slurm": "slurm",
    "submitit_local": "slurm",
    "optuna": "optuna",
}
"""What brings Hydra's launchers and sweepers."""


def quoted(text: str) -> str:
    """A text as a value of an override, whatever is in it."""
    escaped = re.sub(r"(\\+)('|$)", lambda found: found[1] * 2 + found[2], text).replace("'", "\\'")
    return f"'{escaped}'"


def _near(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return f"what kfx list shows{meant}" if len(known) > _MOST_SHOWN else f"{', '.join(known)}{meant}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    shown = lines[:2] if lines and lines[0].endswith(":") else lines[:1]
    return " ".join(shown) or type(error).__name__


def check_subfolders(nodes: Sequence[DictConfig]) -> None:
    """ConfigError if the jobs of a sweep would not each have a folder of its own."""
    names: dict[str, int] = {}
    for number, node in enumerate(nodes):
        with open_dict(node):
            node.job.num = node.job.id = number
        first = names.setdefault(text_at(node, "sweep.subdir"), number)
        if first != number:
            raise ConfigError(f"hydra.sweep.subdir: is the same for the jobs {first} and {number}; leave it out")


def text_at(node: DictConfig, key: str) -> str:
    """A setting of Hydra's with its interpolations written out; ConfigError where that cannot be done."""
    try:
        return str(OmegaConf.select(node, key, throw_on_missing=True))
    except OmegaConfBaseException as error:
        raise ConfigError(f"hydra.{key}: {_first_line(error)}; set it, or write the folder") from error


# ---- checks


def check(raw: DictConfig) -> Config:
    """Build the typed config; every key, type, range and combination is checked."""
    if "hydra" in raw:
        check_hydra(raw.hydra)
    try:
        _refuse_resolvers(raw)
    except OmegaConfBaseException as error:
        raise ConfigError(f"cannot read an interpolation: {_first_line(error)}; write the value") from error
    raw = _resolved(raw)
    known = {item.name for item in dataclasses.fields(Config)}
    for key in map(str, raw):
        if key not in known:
            raise ConfigError(f"{key}: unknown key; it takes {_near(key, sorted(known))}")
    parts: dict[str, Any] = {}
    for group in OPTIONS:
        parts[group] = _chosen(group, group, raw.get(group))
    if "kernel" in _fields(type(parts["dataset"])):  # a data set drawn from a kernel of its own
        parts["dataset"].kernel = _chosen("dataset.kernel", "kernel", raw.dataset.kernel)
        _choose_parts("dataset.kernel", parts["dataset"].kernel, raw.dataset.kernel)
    _choose_parts("kernel", parts["kernel"], raw.kernel)
    for key, schema in SINGLE.items():
        if key == "published":
            found = raw.get(key)
            listed = isinstance(found, ListConfig)
            entries = [] if found is None else list(found) if listed else [found]
            parts[key] = [_build(f"published[{i}]" if listed else key, schema, node) for i, node in enumerate(entries)]
        elif raw.get(key) is not None:
            parts[key] = _build(key, schema, raw[key])
        else:
            raise ConfigError(f"{key}=null: expected {', '.join(_fields(schema))}; leave it out for the defaults")
    if parts["interpolation"].kernel is not None:
        chosen = _chosen("interpolation.kernel", "kernel", raw.interpolation.kernel)
        _choose_parts("interpolation.kernel", chosen, raw.interpolation.kernel)
        parts["interpolation"].kernel = chosen
    config = Config(
        **parts,
        seed=_whole(raw, "seed"),
        kernel_check=_flag(raw, "kernel_check"),
        resume=_flag(raw, "resume"),
        figures=_figures(raw),
        retries=_whole(raw, "retries"),
    )
    _check_combinations(config)
    return config


def _resolved(raw: DictConfig) -> DictConfig:
    """The job's part of a config with its interpolations written out; a value may still be missing nowhere."""
    own = OmegaConf.masked_copy(raw, [str(key) for key in raw if key != "hydra"])
    try:
        return OmegaConf.create(OmegaConf.to_container(own, resolve=True, throw_on_missing=True))  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or 'config'}: {_first_line(error)}; write the value") from error


def _refuse_resolvers(raw: DictConfig) -> None:
    """ConfigError if a value of the job would call a resolver, as one that reads the environment."""
    for path, value in _leaves(OmegaConf.to_container(raw, resolve=False), ""):
        if not path.startswith("hydra.") and isinstance(value, str) and "${" in value and _calls_resolver(value):
            raise ConfigError(f"{path}={value}: an interpolation may name a key, not call a resolver; write the value")


def _calls_resolver(value: str) -> bool:
    """Whether there is a resolver's call in it, at any depth of its interpolations."""
    waiting: list[Any] = [parse(value)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, OmegaConfGrammarParser.InterpolationResolverContext):
            return True
        waiting += getattr(node, "children", None) or []
    return False


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _leaves(value, f"{path}[{i}]")
    else:
        yield path, node


def _flag(raw: DictConfig, name: str, usual: bool = False) -> bool:
    value = raw.get(name, usual)
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value}: expected true or false")
    return value


def _figures(raw: DictConfig) -> list[str]:
    """The formats of the pictures: true is PNG, false none."""
    value = raw.get("figures", True)
    if isinstance(value, bool):
        return ["png"] if value else []
    if isinstance(value, ListConfig) and value and all(name in FORMATS for name in value):
        return [str(name) for name in value]
    raise ConfigError(f"figures={value}: expected true, false, or a list out of {', '.join(FORMATS)}")


def _whole(raw: DictConfig, name: str) -> int:
    value = raw.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{name}={value}: expected a whole number >= 0")
    return value


def _chosen(path: str, group: str, node: Any) -> Any:
    """The node at `path`, of the schema that its `name` chooses among the options of `group`."""
    name = node.get("name") if isinstance(node, DictConfig) else node
    if name not in OPTIONS[group]:
        raise ConfigError(f"{path}.name={name}: unknown; it takes {', '.join(OPTIONS[group])}")
    return _build(path, OPTIONS[group][name], node)


def _choose_parts(path: str, kernel: Any, raw: DictConfig) -> None:
    """Make nodes of a combination's parts, at any depth: (coefficient or None, node)."""
    if not isinstance(kernel, CombinationNode):
        return
    allowed = NETWORK_PARTS if kernel.name == "rbf_network" else tuple(OPTIONS["kernel"])
    chosen = []
    for i, part in enumerate(raw.parts):
        here = f"{path}.parts[{i}]"
        if not isinstance(part, DictConfig) or part.get("name") not in allowed:
            raise ConfigError(f"{here}={part}: expected a name, one of {', '.join(allowed)}, and its parameters")
        coefficient = part.get("coefficient", 1.0 if kernel.name == "rbf_network" else None)
        if coefficient is not None and not (isinstance(coefficient, (int, float)) and 0 < coefficient < math.inf):
            raise ConfigError(f"{here}.coefficient={coefficient}: expected a number > 0")
        without = OmegaConf.masked_copy(part, [str(key) for key in part if key != "coefficient"])
        node = _chosen(here, "kernel", without)
        _choose_parts(here, node, without)
        chosen.append((coefficient, node))
    kernel.parts = chosen


def _build(path: str, schema: type[Node], node: Any) -> Any:
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{path}={node}: expected keys, one of {', '.join(_fields(schema))}")
    for key in map(str, node):
        if key not in _fields(schema):
            raise ConfigError(f"{path}.{key}: unknown key; {path} takes {_near(key, list(_fields(schema)))}")
    for key, item in _fields(schema).items():
        if isinstance(item.default_factory, type) and issubclass(item.default_factory, Node) and key in node:
            _build(f"{path}.{key}", item.default_factory, node[key])  # for the path in its errors
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), node))
    except FieldError as error:
        raise ConfigError(f"{path}.{error}") from error
    except OmegaConfBaseException as error:
        if isinstance(error.__cause__, FieldError):
            raise ConfigError(f"{path}.{error.__cause__}") from error
        key = str(error.full_key or "")
        accepts = _accepts(schema, key)
        got = OmegaConf.select(OmegaConf.create({"node": OmegaConf.to_container(node)}), f"node.{key}") if key else ""
        raise ConfigError(f"{path}.{key}={got}: expected {accepts}") from error


def _fields(schema: type[Node]) -> dict[str, dataclasses.Field]:
    return {item.name: item for item in dataclasses.fields(schema)}


def _accepts(schema: type[Node], key: str) -> str:
    item = _fields(schema).get(key.split("[")[0])
    return item.metadata.get("accepts", "text") if item else "a value of another type"


def _check_combinations(config: Config) -> None:
    from kfx.build import fold_size, has_classes, training_size

    if isinstance(config.evaluation, KFold) and not isinstance(config.dataset, Table):
        tables = ", ".join(name for name, node in OPTIONS["dataset"].items() if issubclass(node, Table))
        raise ConfigError(f"evaluation=k_fold: takes a table, dataset={tables}; got {config.dataset.name}")
    try:
        whole = training_size(config.dataset)
    except DataError as error:
        raise ConfigError(str(error)) from error
    size = fold_size(config.evaluation, whole)
    if size < 2 or (isinstance(config.evaluation, KFold) and config.evaluation.folds > whole):
        raise ConfigError(f"evaluation.folds={config.evaluation.folds}: too many for {whole} points; take fewer folds")
    batch = config.sampler.batch_size
    if batch is not None and batch > size:
        raise ConfigError(
            f"sampler.batch_size={batch}: dataset {config.dataset.name} has {size} training points; take at most "
            f"{size}, or raise dataset.n_train"
        )
    for n in config.evaluation.n_interpolation or ():
        if n > size:
            raise ConfigError(f"evaluation.n_interpolation: {n} exceeds the {size} training points of the data set")
    if config.sampler.choice == "stratified" and not has_classes(config.dataset):
        raise ConfigError(f"sampler.choice=stratified: dataset {config.dataset.name} has no classes; use uniform")
    if isinstance(config.optimizer, FLOWS):
        _check_flow(config, size)
    if config.kernel.start_from == "worst" and config.kernel.starts == 1:
        raise ConfigError("kernel.start_from=worst: chooses among several starts; set kernel.starts above 1")
    if config.regularization.selection == "trained":
        _check_trained_regularization(config)
    if config.dataset.n_test == 0 and not isinstance(config.evaluation, KFold):
        raise ConfigError(
            "dataset.n_test=0: expected at least 1, or evaluation=k_fold, whose folds are its test points"
        )
    if isinstance(config.evaluation, TestPoints) and config.evaluation.balanced and not has_classes(config.dataset):
        raise ConfigError(f"evaluation.balanced=true: dataset {config.dataset.name} has no classes; set it to false")


def _check_flow(config: Config, size: int) -> None:
    if config.kernel_check:
        raise ConfigError("kernel_check=true: compares parameters, which a flow does not move; set it to false")
    if config.sampler.choice == "neighbourhood":
        raise ConfigError("sampler.choice=neighbourhood: neighbours change along a flow; use uniform or stratified")
    if (
        config.flow.evaluate_every + config.flow.evaluate_last
        and config.evaluation.regularization.value == "validation"
    ):
        raise ConfigError(
            "evaluation.regularization.value=validation: would be chosen anew at every evaluation on the way; set "
            "flow.evaluate_every=0 and flow.evaluate_last=0, or a number"
        )
    if config.sampler.samples > 1:
        raise ConfigError(f"sampler.samples={config.sampler.samples}: a flow has one sample a layer; set 1")
    for n in config.flow.n_interpolation or ():
        if n > size:
            raise ConfigError(f"flow.n_interpolation: {n} exceeds the {size} training points of the data set")
    if config.interpolation.rcond is not None and config.interpolation.solver != "lstsq":
        raise ConfigError(
            f"interpolation.rcond={config.interpolation.rcond}: is lstsq's; set interpolation.solver=lstsq"
        )


def _check_trained_regularization(config: Config) -> None:
    name, optimizer = config.objective.name, config.optimizer
    if name not in ("nll", "loo"):
        raise ConfigError(
            f"regularization.selection=trained: objective {name} rewards a larger λ as such (rho → 1 − p as λ → ∞, "
            "whatever the kernel); use objective=nll or loo, or selection=validation"
        )
    if optimizer.name in ("none", "grid", "flow_euler", "flow_rk45"):
        raise ConfigError(
            f"regularization.selection=trained: optimizer={optimizer.name} moves no λ; use adam, sgd or nesterov"
        )
    if optimizer.name == "finite_difference":
        raise ConfigError(
            "regularization.selection=trained: finite differences have one step for λ and lengths; use optimizer=adam"
        )
    if getattr(optimizer, "space", "log") != "log":
        raise ConfigError("regularization.selection=trained: moves log λ; set optimizer.space=log")
    if optimizer.name == "bayesian" and optimizer.bounds is not None:
        raise ConfigError(
            f"optimizer.bounds={optimizer.bounds}: would bound λ as well with regularization.selection=trained; set "
            "optimizer.bounds=null and kernel.bounds"
        )
