"""The plugins of docs/parts.md, as files."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parent.parent / "docs/parts.md").read_text()
BLOCKS = {name: block for block, name in re.findall(r"```python\n(# (\w+)\.py\n.*?)```", TEXT, flags=re.DOTALL)}


def write_plugins(folder: Path) -> list[str]:
    """Write all of them to a folder; the words that name them."""
    words = []
    for name, block in BLOCKS.items():
        (folder / f"{name}.py").write_text(block)
        words += ["--plugin", f"{name}.py"]
    return words
