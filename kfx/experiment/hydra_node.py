"""The settings of Hydra that a config may change: where runs go and what starts them. The others could run code."""

from __future__ import annotations

import re

from omegaconf import DictConfig, OmegaConf

from kfx.config.nodes import leaves
from kfx.config.registry import GROUPS
from kfx.outcomes import ConfigError

FOLDERS = ("run.dir", "sweep.dir", "sweep.subdir")
_HYDRAS_OWN = re.compile(
    r"searchpath(\[\d+\])?"  # set by --config-dir
    r"|overrides\.(task|hydra)(\[\d+\])?"
    r"|runtime\.(version|version_base|cwd|output_dir|choices\.[^.\[]+|config_sources(\[\d+\]\.(path|schema|provider))?)"
    r"|job\.(name|id|num|override_dirname|config_name)"
)
"""Keys that Hydra fills in itself."""
_SLURM = (
    "submitit_folder timeout_min cpus_per_task gpus_per_node tasks_per_node mem_gb nodes name stderr_to_stdout "
    "partition qos comment constraint exclude gres cpus_per_gpu gpus_per_task mem_per_gpu mem_per_cpu account "
    "signal_delay_s max_num_timeout additional_parameters array_parallelism"
)
_STARTERS = {
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher": "",
    "kfx.jobs.launcher.CoresLauncher": "n_jobs",
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher": (
        "n_jobs backend prefer require verbose timeout pre_dispatch batch_size temp_folder max_nbytes mmap_mode"
    ),
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher": _SLURM,
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher": _SLURM,
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper": "max_batch_size params",
    "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper": (
        "sampler direction storage study_name n_trials n_jobs max_failure_rate search_space params"
    ),
}
"""Launchers and sweepers, and for each the settings that can neither hold a command nor name a function."""
_SAMPLER = re.compile(r"optuna\.samplers\.[A-Z]\w*Sampler")
_SLURM_FOLDER = "${hydra.sweep.dir}/.submitit/%j"
_MISSING = object()


def check(node: DictConfig, usual: DictConfig) -> None:
    """ConfigError naming the first key of the composed `hydra` node that a config may not change.

    usual: the node without any override.
    """
    settings, defaults = (dict(leaves(OmegaConf.to_container(each, resolve=False))) for each in (node, usual))
    for name in ("launcher", "sweeper"):
        _check_starter(name, node.get(name))
    for key in sorted(set(settings) | set(defaults)):
        value, group = settings.get(key, _MISSING), key.partition(".")[0]
        if group in ("launcher", "sweeper") or key in FOLDERS or value == defaults.get(key, _MISSING):
            continue
        if _HYDRAS_OWN.fullmatch(key) and (group != "runtime" or "${" not in str(value)):
            continue
        if value is _MISSING and any(other.startswith((f"{key}.", f"{key}[")) for other in settings):
            continue  # it was empty; its new keys are reported by name
        shown = None if value is _MISSING else value
        raise ConfigError(
            f"hydra.{key}={shown}: kfx lets a config set hydra.run.dir, hydra.sweep.dir, "
            "hydra.sweep.subdir, hydra.launcher and hydra.sweeper, and no other key of Hydra's; leave it out"
        )


def _check_starter(name: str, node: object) -> None:
    """ConfigError for an unknown launcher or sweeper, or for a setting that could be code."""
    if not isinstance(node, DictConfig):
        raise ConfigError(f"hydra.{name}={node}: expected its settings; leave it out")
    target = node.get("_target_")
    if target not in _STARTERS or (name == "launcher") != str(target).endswith("Launcher"):
        raise ConfigError(
            f"hydra.{name}._target_={target}: kfx starts Hydra's own launchers and sweepers, and nothing else"
        )
    settings = OmegaConf.to_container(node, resolve=False)
    assert isinstance(settings, dict)
    allowed = _STARTERS[target].split()
    for key, value in ((str(key), value) for key, value in settings.items()):
        shown = f"hydra.{name}.{key}={value}"
        if key not in ("_target_", *allowed) and value is not None:
            raise ConfigError(f"{shown}: is a command or unknown; {name} takes {', '.join(allowed) or 'no settings'}")
        for path, leaf in leaves(value, key):
            if path.endswith("_target_") and path != "_target_" and not _is_sampler(path, leaf):
                raise ConfigError(f"hydra.{name}.{path}={leaf}: kfx constructs nothing else here; leave it out")
            if "${" in str(leaf) and leaf != _SLURM_FOLDER:
                raise ConfigError(f"hydra.{name}.{path}={leaf}: no interpolation is taken here; write the value")
            if not (path + str(leaf)).isprintable():
                raise ConfigError(f"hydra.{name}.{path}={leaf!r}: holds a control character; leave it out")
    jobs = settings.get("n_jobs", 1)
    if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < -1 or jobs == 0:
        raise ConfigError(f"hydra.{name}.n_jobs={jobs}: expected a whole number >= 1, or -1 for one job a core")
    if not str(settings.get("storage") or "sqlite:///").startswith("sqlite:///"):
        raise ConfigError(f"hydra.{name}.storage={settings['storage']}: expected null or sqlite:///FILE")
    if name == "sweeper":
        _check_drawn(settings.get("params") or {}, str(target).endswith("BasicSweeper"))


def _is_sampler(path: str, leaf: object) -> bool:
    return path == "sampler._target_" and _SAMPLER.fullmatch(str(leaf)) is not None


def _check_drawn(params: object, basic: bool) -> None:
    """ConfigError if a sweeper could draw more than plain values, because its jobs are not seen before they run."""
    if not isinstance(params, dict):
        raise ConfigError(f"hydra.sweeper.params={params}: expected keys and what to draw for them; leave it out")
    for name, drawn in ((str(name), drawn) for name, drawn in params.items()):
        bare = name.lstrip("+~")
        if "range(" in str(drawn):
            raise ConfigError(
                f"hydra.sweeper.params.{name}={drawn}: may draw beyond a range's end; write choice(a,b,c)"
            )
        if basic or bare in (*GROUPS, "experiment") or bare.startswith("hydra") or set("@/") & set(bare):
            raise ConfigError(
                f"hydra.sweeper.params.{name}: kfx checks the jobs of a sweep before they run; write it as a word of "
                "the command, key=a,b,c"
            )
