"""YAML that is small as a file and enormous as values, wherever a person's or a stranger's file is read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from kfx.outcomes import ConfigError, RecordError
from kfx.papers import claims, numbers, tables
from kfx.yaml_file import YamlBoundsError, bounded
from tests.faults.conftest import ended, record  # noqa: F401

LEVELS = "abcdefghi"
ALIASES = "\n".join(
    f"{name}: &{name} [{', '.join([f'*{LEVELS[i - 1]}' if i else 'x'] * 9)}]" for i, name in enumerate(LEVELS)
)
MERGED = "a: &a {x: 1}\n" + "\n".join(
    f"{LEVELS[i]}: &{LEVELS[i]} {{{', '.join(f'k{j}: *{LEVELS[i - 1]}' for j in range(9))}}}" for i in range(1, 9)
)
BOMBS = {
    "aliases": ALIASES,
    "mappings": MERGED,
    "long text": f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 5000)}]",
    "itself": "a: &a [*a]",
    "itself below": "a: &a {b: [{c: *a}]}",
    "deep": "a: " + "[" * 5000 + "]" * 5000,
    "many": "a: [" + "1," * 30_000 + "]",
    "large": "# " + "x" * 6_000_000,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_at_once(tmp_path, bomb):
    path, before = tmp_path / "bomb.yaml", time.perf_counter()
    path.write_text(BOMBS[bomb])
    with pytest.raises(YamlBoundsError, match="; write "):
        bounded(path)
    assert time.perf_counter() - before < 5


def test_what_is_no_bomb_is_read(tmp_path):
    content = {"a": list(range(5000)), "b": {"c": [[[1, 2]]], "d": "x" * 1000}}
    path = tmp_path / "file.yaml"
    path.write_text(yaml.safe_dump(content) + "e: &e [1, 2]\nf: [*e, *e]\n")
    assert yaml.safe_load(bounded(path)) == {**content, "e": [1, 2], "f": [[1, 2]] * 2}
    path.write_text("a: [1")
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(bounded(path))


COMMANDS = (["compare", "r"], ["report", "r"], ["rerun", "r", "--output", "again"], ["resume", "r"], ["plot", "r"],
            ["predict", "r", "new.npz"], ["export", "tensorboard", "r"])  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_record_with_a_bomb_is_a_line(kfx, record, words):  # noqa: F811
    path, before = record / "config.yaml", time.perf_counter()
    Path("new.npz").touch()
    path.write_text(f"{path.read_text()}\n{ALIASES}\n")
    code, out, err = kfx(*words)
    assert (code in (1, 2), out, len(err.splitlines())) == (True, "", 1), err
    assert "holds more than 20000 values" in err
    assert time.perf_counter() - before < 20


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_no_interpolation_of_a_record_is_resolved(kfx, record, words, monkeypatch):  # noqa: F811
    monkeypatch.setenv("SECRET", "the-secret")
    path = record / "config.yaml"
    Path("new.npz").touch()
    path.write_text(f"{path.read_text()}\nstolen: ${{oc.env:SECRET}}\n")
    code, out, err = kfx(*words)
    assert (code in (1, 2), out, len(err.splitlines())) == (True, "", 1), err
    assert "stolen=${oc.env:SECRET}" in err
    assert not [each for each in Path().rglob("*") if each.is_file() and b"the-secret" in each.read_bytes()]


def test_other_files_with_a_bomb_are_a_line(kfx, record):  # noqa: F811
    folder = Path("own/experiment")
    folder.mkdir(parents=True)
    (folder / "evil.yaml").write_text(f"# @package _global_\n{ALIASES}\n")
    code, out, err = kfx("run", "--config-dir", "own", "+experiment=evil")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "evil.yaml: holds more than 20000 values" in err
    code, out, err = kfx("list", "experiment", "darcy", "--config-dir", "own")
    assert (code, len(err.splitlines()), "evil.yaml: holds more than" in err) == (2, 1, True)
    for name, read, error in (
        (claims.FILE, claims.read, ConfigError),
        ("remarks.yaml", numbers.read_remarks, ConfigError),
        ("t.yaml", tables.read, RecordError),
    ):
        Path(name).write_text(ALIASES)
        Path("t.csv").touch()
        with pytest.raises(error, match="holds more than 20000 values"):
            read(Path())
    (record / "overrides.yaml").write_text(ALIASES)
    code, out, err = kfx("report", "r")
    assert (code in (1, 2), len(err.splitlines())) == (True, 1)
