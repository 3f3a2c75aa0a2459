"""What tests share: the command run in process, and the folder of real data."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hydra.core.config_store import ConfigStore

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command does; read when torch is first imported

from kfx.cli import main
from kfx.config import registry
from kfx.numerics import threads
from tests.plugins import isolated

_NEEDED = {
    "test_gpytorch.py": "gpytorch",
    "test_interactive.py": "nbclient",
    "test_imports.py": "grimp",
    "test_cluster.py": "distributed",
    "faults/test_stores.py": "distributed",
}
collect_ignore = [file for file, package in _NEEDED.items() if find_spec(package) is None]
"""Files whose imports need a package that the wheel alone does not bring."""


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture(autouse=True)
def one_thread():
    """Small matrices on several threads wait for each other; a run sets its own number."""
    threads.use(1)


@pytest.fixture(autouse=True)
def warns_anew(monkeypatch):
    """A process warns once about a file: each test is the first that reads its own."""
    monkeypatch.setattr("kfx.data.files._warned", set())


@pytest.fixture
def own_registry():
    """Options that a test registers are gone after it."""
    with isolated():
        yield
    for group, options in registry.OPTIONS.items():
        known = ConfigStore.instance().repo.get(group, {})
        for name in set(known) - {f"{each}.yaml" for each in options}:
            del known[name]


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """An empty working folder, with an empty data cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KFX_DATA_DIR", str(tmp_path / "cache"))
    return tmp_path


QUICK = ("figures=false", "device.precision_check=off")


@pytest.fixture
def kfx(in_folder, capsys):
    """Call the command: `code, out, err = kfx("run", …)`. A run draws no pictures and measures no precision unless its
    words say so."""

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        if words[:1] == ("run",):
            said = {word.partition("=")[0] for word in words}
            words += tuple(word for word in QUICK if word.partition("=")[0] not in said)
        try:
            code = main(list(words))
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 1
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def real_data(monkeypatch):
    """The folder that `KFX_DATA_DIR` named when the tests started; the test is skipped without it."""
    if not _REAL_DATA or not Path(_REAL_DATA).is_dir():
        pytest.skip("KFX_DATA_DIR is not set: real data needed")
    monkeypatch.setenv("KFX_DATA_DIR", str(Path(_REAL_DATA).absolute()))
    return Path(_REAL_DATA).absolute()


_REAL_DATA = os.environ.get("KFX_DATA_DIR")
