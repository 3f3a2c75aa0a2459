"""Names and descriptions of all options, presets and experiments."""

from __future__ import annotations

from pathlib import Path

from kfx.config import registry
from kfx.outcomes import ConfigError

GROUPS = (*registry.GROUPS, "experiment")


def config_folder() -> Path:
    """`kfx/configs` in a wheel, the top-level `configs` beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def options(group: str, own: str | None = None) -> list[str]:
    """Names of all options of a group, those in the folder `own` included. A leading underscore marks a part of
    others."""
    registry.load()
    found = set(registry.OPTIONS.get(group, ()))
    for folder in _folders(group, own):
        paths = [path.relative_to(folder) for path in folder.rglob("*.yaml") if not path.name.startswith("_")]
        found |= {path.with_suffix("").as_posix() for path in paths}
    return sorted(found)


def description(group: str, option: str, own: str | None = None) -> str:
    """The description of an option, or the first comment of a file that is no directive."""
    if option in registry.OPTIONS.get(group, ()):
        schema = registry.OPTIONS[group][option]
        return f"{schema.symbol}: {schema.description}" if schema.symbol else schema.description
    for line in file_of(group, option, own).read_text(errors="replace").splitlines():
        if line.startswith("#") and not line.startswith("# @"):
            return line.lstrip("# ")
    return ""


def file_of(group: str, option: str, own: str | None = None) -> Path:
    """The file of a preset or an experiment."""
    return next(path for folder in _folders(group, own) if (path := folder / f"{option}.yaml").is_file())


def _folders(group: str, own: str | None) -> list[Path]:
    """The folders of a group's files; kfx's own come first, as in Hydra's search path."""
    if own is not None and not Path(own).is_dir():
        raise ConfigError(f"--config-dir {own}: is no folder")
    return [config_folder() / group, *([Path(own) / group] if own is not None else [])]
