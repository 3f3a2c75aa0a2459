"""The distribution kernel-flows: what messages and pages say of it, and its description on a registry."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kfx

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = set(PROJECT["project"]["optional-dependencies"])


def texts():
    """Every text of the repository by its path, but for this file."""
    named = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not named:
        pytest.skip("no checkout")
    for name in named:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".yaml", ".toml", ".rst"} and path.is_file() and path != Path(__file__):
            yield name, path.read_text()


def test_every_line_that_installs_names_this_distribution_and_an_extra_that_it_has():
    named = {}
    for name, text in texts():
        assert not re.search(r"install '?kfx\b(?!`\s+brings\s+another)|\bkfx\[[a-z]", text), name
        for extra in re.findall(r"kernel-flows\[([\w,-]+)\]|to_install\(['\"]([\w-]+)['\"]\)", text):
            named.update(dict.fromkeys("".join(extra).split(","), name))
    assert {"gpytorch", "isofit", "neural-tangents", "slurm"} <= set(named)
    assert {extra: name for extra, name in named.items() if extra not in EXTRAS} == {}


def test_the_description_has_no_link_that_only_a_clone_can_follow():
    text = (ROOT / "README.md").read_text()
    assert re.search(r"\]\((?!https://)", text)
    for each in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"].replace(r"\1", r"\g<1>"), text)
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []
    assert "what the learning was worth" in text


def test_metadata_agrees():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {kfx.__version__}\n" in citation
    assert Path(kfx.__file__).with_name("py.typed").exists()
    minor = f"Programming Language :: Python :: {sys.version_info.major}.{sys.version_info.minor}"
    assert minor in PROJECT["project"]["classifiers"]
