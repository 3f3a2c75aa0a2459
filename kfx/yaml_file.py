"""YAML files within bounds: a few hundred bytes of aliases can stand for more values than fit in memory."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from kfx.outcomes import ConfigError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXT_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
"""Those of libyaml, where PyYAML has them: ten times as fast on hundreds of files."""
_MOST_VALUES, _MOST_DEPTH, _MOST_BYTES = 20_000, 50, 5_000_000
_TEXT = 250
"""Characters of a text that count as one more value."""


def read_yaml(path: Path, *, as_text: bool = False) -> Any:
    """The content of a YAML file, numbers as they are written with as_text. ConfigError for a file that cannot be
    read."""
    try:
        return yaml.load(bounded(path), _TEXT_LOADER if as_text else _LOADER)
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error


class YamlBoundsError(ValueError):
    """A YAML file is too large, too deep, or stands for too many values."""


def bounded(path: Path) -> io.BytesIO:
    """The content of a YAML file, which a loader can read in moderate time and memory.

    YamlBoundsError for more than 5 MB, 50 levels or 20 000 values, each alias counted as what it stands for. Errors of
    syntax are left to the loader.
    """
    with path.open("rb") as stream:
        content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise YamlBoundsError(f"is larger than {_MOST_BYTES} bytes; write fewer values")
    try:
        _require_bounds(yaml.parse(content, Loader=_LOADER))
    except yaml.YAMLError as error:  # the loader tells it, and stops there too
        if "nesting depth" in str(error):  # that of libyaml, in the first events; OmegaConf's loader has none
            raise YamlBoundsError(f"holds more than {_MOST_DEPTH} levels; write fewer") from error
    return io.BytesIO(content)


def _require_bounds(events: Iterable[yaml.Event]) -> None:
    """Add up the values at each level; those under an anchor count again at each of its aliases."""
    sizes: dict[str, int] = {}
    levels: list[tuple[str | None, int]] = [(None, 0)]
    for event in events:
        anchor, size = getattr(event, "anchor", None), 0
        if isinstance(event, yaml.CollectionStartEvent):
            levels.append((anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = levels.pop()
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == open_ for open_, _ in levels):
                raise YamlBoundsError(f"*{event.anchor} stands for what it lies in; write the values")
            anchor, size = None, sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            size = 1 + len(event.value) // _TEXT
        if anchor is not None and size:
            sizes[anchor] = size
        within, count = levels[-1]
        levels[-1] = within, count + size
        if count + size > _MOST_VALUES or len(levels) > _MOST_DEPTH:
            what = f"{_MOST_VALUES} values, each alias counted as what it stands for"
            what = f"{_MOST_DEPTH} levels" if len(levels) > _MOST_DEPTH else what
            raise YamlBoundsError(f"holds more than {what}; write fewer")
