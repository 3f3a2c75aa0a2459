"""The plugins of docs/parts.md, as files, and a registry that forgets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kfx.config import plugins, registry

TEXT = (Path(__file__).resolve().parent.parent / "docs/parts.md").read_text()
BLOCKS = {name: block for block, name in re.findall(r"```python\n(# (\w+)\.py\n.*?)```", TEXT, flags=re.DOTALL)}


def write_plugins(folder: Path) -> list[str]:
    """Write all of them to a folder; the words that name them."""
    words = []
    for name, block in BLOCKS.items():
        (folder / f"{name}.py").write_text(block)
        words += ["--plugin", f"{name}.py"]
    return words


@contextmanager
def isolated() -> Iterator[None]:
    """Options, metrics and plugins that are registered within the block are gone after it, and what was gone is there
    again."""
    registry.load()
    before, in_use = plugins._registered(), dict(plugins._plugins)
    try:
        yield
    finally:
        plugins._restore(*before)
        plugins._plugins.clear()
        plugins._plugins.update(in_use)
