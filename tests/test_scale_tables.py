"""The tables of docs/scale_notes.md follow from the rows in runs/scale/."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["choices", "libraries", "everything"])
def test_the_page_has_what_the_rows_give(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import scale_tables

    assert f"\n\n{getattr(scale_tables, name)()}\n\n" in (ROOT / "docs/scale_notes.md").read_text()
