"""How many faults: a few with `make test`, all of them with `make faults`; and the counts at the end."""

from __future__ import annotations

import collections
import os
import shutil

import pytest

from kfx import run
from tests.faults.words import SMALL

FULL = os.environ.get("KFX_FAULTS") == "full"
_counts: collections.Counter[str] = collections.Counter()


needs_full = pytest.mark.skipif(not FULL, reason="with make faults")
"""For tests that are heavy, and whose like is in `make test`."""


@pytest.fixture
def full() -> bool:
    return FULL


@pytest.fixture(scope="session")
def ended(tmp_path_factory):
    """A small run, once for all tests."""
    folder = tmp_path_factory.mktemp("ended") / "r"
    run([*SMALL, f"hydra.run.dir='{folder}'"], progress=False)
    return folder


@pytest.fixture
def record(ended, in_folder):
    """The folder of a small run that has ended."""
    return shutil.copytree(ended, in_folder / "r")


@pytest.fixture
def counts() -> collections.Counter[str]:
    """Faults injected, runs resumed, and what must stay 0; printed at the end of `make faults`."""
    return _counts


def pytest_sessionfinish(session):
    """A process of several hands its counts over."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["faults"] = dict(_counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """The first process adds up what the others counted."""
    _counts.update(getattr(node, "workeroutput", {}).get("faults", {}))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    if _counts:
        line = ", ".join(f"{name} {value}" for name, value in sorted(_counts.items()))
        terminalreporter.write_line(f"faults: {line}")
