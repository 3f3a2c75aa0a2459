"""The page of published and measured numbers: what its tables give, with commands that compose."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from kfx.config.compose import composed, without_hydra

SCRIPT = Path(__file__).parent.parent / "scripts" / "reproduction.py"


@pytest.fixture(scope="module")
def reproduction():
    spec = importlib.util.spec_from_file_location("reproduction", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_tables_give(reproduction):
    assert reproduction.PAGE.read_text() == reproduction.page()


def test_every_command_of_the_page_composes(reproduction):
    commands = re.findall(r"^`kfx run (.*?)`", reproduction.PAGE.read_text(), flags=re.MULTILINE)
    assert commands
    for words in commands:
        assert without_hydra(composed(shlex.split(words))).kernel.name


def test_a_run_adds_its_rows(kfx, in_folder, reproduction, monkeypatch):
    monkeypatch.setattr(reproduction, "TABLES", in_folder / "tables")
    monkeypatch.setattr(reproduction, "ROOT", in_folder)
    words = ["optimizer.iterations=3", "evaluation.repeats=2", "follow.every=0", "figures=false", "hydra.run.dir=r"]
    assert kfx("run", "+experiment=owhadi_yoo/greens_recovery", *words)[0] == 0
    reproduction.add([in_folder / "r"])
    page = reproduction.page()
    assert "## owhadi_yoo/greens_recovery evaluation.repeats=2 follow.every=0 optimizer.iterations=3" in page
    assert re.search(r"^\| 64 \|  \| \S+ → \S+ \|", page, flags=re.MULTILINE)


def test_verdicts_follow_the_rule_of_the_page(reproduction):
    assert reproduction.verdict(1.0, np.array([0.9, 1.0, 1.2]), None) == "reproduced"
    assert reproduction.verdict(2.0, np.array([0.9, 1.0, 1.2]), None) == "differs"
    assert reproduction.verdict(1.0, np.array([1.1]), 0.06) == "reproduced"
    assert reproduction.verdict(1.0, np.array([1.2]), 0.06) == "differs"
    assert "cannot be decided" in reproduction.verdict(1.0, np.array([1.0]), None)
