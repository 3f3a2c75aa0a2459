"""How many faults: a few with `make test`, all of them with `make faults`; and the counts at the end."""

from __future__ import annotations

import collections
import os

import pytest

FULL = os.environ.get("KFX_FAULTS") == "full"
_counts: collections.Counter[str] = collections.Counter()


@pytest.fixture
def full() -> bool:
    return FULL


@pytest.fixture
def counts() -> collections.Counter[str]:
    """Faults injected, runs resumed, and what must stay 0; printed at the end of `make faults`."""
    return _counts


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    if _counts:
        line = ", ".join(f"{name} {value}" for name, value in sorted(_counts.items()))
        terminalreporter.write_line(f"faults: {line}")
