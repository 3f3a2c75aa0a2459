"""What of Hydra's own settings a config may change: where runs go and what starts them. The rest is code."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kfx.outcomes import ConfigError

_ADMITTED = ("run.dir", "sweep.dir", "sweep.subdir", "launcher", "sweeper")
"""What kfx documents; with `_HYDRAS_OWN`, which Hydra fills in itself, all that may differ from the defaults."""
_HYDRAS_OWN = (
    "searchpath",  # --config-dir
    "overrides",
    "runtime",
    "job.name",
    "job.id",
    "job.num",
    "job.override_dirname",
    "job.config_name",
)
_LAUNCHERS_AND_SWEEPERS = (
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    "hydra_plugins.kfx.CoresLauncher",
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher",
    "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper",
)
_SAMPLER = re.compile(r"optuna\.samplers\.[A-Z]\w*Sampler")
_COMMANDS = ("setup", "python", "srun_args", "custom_search_space")
"""Settings of launchers and sweepers that are commands or names of functions."""


def check(node: DictConfig, usual: DictConfig) -> None:
    """ConfigError naming the first key of the composed `hydra` node that kfx does not let a config change.

    usual: the node without any override.
    """
    settings, defaults = (_dotted(OmegaConf.to_container(each, resolve=False), "") for each in (node, usual))
    _check_drawn(node.get("sweeper"))
    for key in sorted(set(settings) | set(defaults)):
        group, value = key.partition(".")[0], settings.get(key)
        if group in ("launcher", "sweeper"):
            _check_starter(key, value)
        elif value != defaults.get(key) and not _is_below(key, _ADMITTED + _HYDRAS_OWN):
            if key not in settings and any(_is_below(other, (key,)) for other in settings):
                continue  # it was empty, and what is in it now is shown by its own name
            raise ConfigError(
                f"hydra.{key}={value}: kfx lets a config set hydra.run.dir, hydra.sweep.dir, hydra.sweep.subdir, "
                "hydra.launcher and hydra.sweeper, and no other key of Hydra's; leave it out"
            )


def _is_below(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in names)


def _check_starter(key: str, value: Any) -> None:
    """ConfigError if a setting of a launcher or sweeper names code of its own."""
    words = re.split(r"[.\[]", key)
    if "_target_" in words:
        allowed = value in _LAUNCHERS_AND_SWEEPERS if len(words) == 2 else key == "sweeper.sampler._target_"
        if not allowed or (len(words) > 2 and not _SAMPLER.fullmatch(str(value))):
            raise ConfigError(f"hydra.{key}={value}: kfx starts Hydra's own launchers and sweepers, and nothing else")
    if key == "launcher.n_jobs" and (not isinstance(value, int) or isinstance(value, bool) or value < -1 or value == 0):
        raise ConfigError(f"hydra.{key}={value}: expected a whole number >= 1, or -1 for one job a core")
    if len(words) > 1 and words[1] in _COMMANDS and value not in (None, []):
        raise ConfigError(
            f"hydra.{key}={value}: is a command; put it into the script around kfx, no config may hold one"
        )


def _check_drawn(sweeper: DictConfig | None) -> None:
    """ConfigError for what a sweeper would draw that could bring in more than values: those jobs are not seen before
    they run."""
    if not isinstance(sweeper, DictConfig):
        raise ConfigError(f"hydra.sweeper={sweeper}: expected a sweeper's settings; leave it out")
    params = sweeper.get("params") or {}
    if not isinstance(params, DictConfig | dict):
        raise ConfigError(f"hydra.sweeper.params={params}: expected keys and what to draw for them; leave it out")
    for name in map(str, params):
        group = name.lstrip("+~").partition(".")[0].partition("@")[0].partition("/")[0]
        if sweeper.get("_target_") == _LAUNCHERS_AND_SWEEPERS[1] or group in ("hydra", "experiment"):
            raise ConfigError(
                f"hydra.sweeper.params.{name}: kfx checks the jobs of a sweep before they run; write it as a word of "
                "the command, key=a,b,c"
            )


def _dotted(node: Any, path: str) -> dict[str, Any]:
    """Every leaf, an empty container too, by its path."""
    if isinstance(node, dict) and node:
        return {
            k: v for key, each in node.items() for k, v in _dotted(each, f"{path}.{key}" if path else str(key)).items()
        }
    if isinstance(node, list) and node:
        return {k: v for i, each in enumerate(node) for k, v in _dotted(each, f"{path}[{i}]").items()}
    return {path: node}
