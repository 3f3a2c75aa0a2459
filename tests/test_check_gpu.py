"""The check of a GPU: whole at tiny sizes on the CPU, cut off where a part takes too long, and recorded."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def check(monkeypatch):
    """The script as a module; what it records goes into a folder of its own."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("check_gpu")


def on_cpu(folder, *words):
    """Exit code and lines of the check."""
    command = [sys.executable, str(ROOT / "scripts/check_gpu.py"), "--cpu", "--output", "found.json", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    lines = [json.loads(line) for line in (folder / "found.json").read_text().splitlines()]
    assert len(done.stdout.splitlines()) == len(lines), done.stderr
    return done.returncode, {line["part"]: line for line in lines}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_part_ends_well_on_a_cpu(check, tmp_path):
    code, lines = on_cpu(tmp_path, "--seconds", *(f"{part.name}=200" for part in check.PARTS))  # others compute beside
    assert list(lines) == [part.name for part in check.PARTS]
    assert {name: line["status"] for name, line in lines.items()} == dict.fromkeys(lines, "ok"), lines
    assert code == 0
    assert all(line["numbers"] for line in lines.values())
    assert lines["resumed"]["numbers"]["resumed against uninterrupted"].endswith("agree bit for bit")


@pytest.mark.slow
def test_a_part_that_takes_too_long_is_cut_off_and_the_others_go_on(tmp_path):
    code, lines = on_cpu(tmp_path, "--only", "card", "grams", "--seconds", "card=0.05", "grams=100")
    assert (code, lines["card"]["status"], lines["grams"]["status"]) == (1, "timed out", "ok")
    assert lines["card"]["seconds"] < 2


def test_what_a_part_has_measured_and_why_it_failed_are_kept(check, monkeypatch, tmp_path):
    script = tmp_path / "part.py"
    monkeypatch.setattr(check, "__file__", str(script))
    part = check.PARTS[0]
    for body, status, numbers in (
        ("print('{\"a\": 1}', flush=True); time.sleep(60)", "timed out", {"a": 1}),
        ("print('{\"a\": 1}'); raise ValueError('too\\nlarge')", "failed", {"a": 1}),
        ("sys.exit(3)", "skipped", {}),
    ):
        script.write_text(f"import sys, time\n{body}\n")
        line = check.run(part, 3.0, True)
        assert (line["status"], line["numbers"]) == (status, numbers)
    script.write_text("print('{\"a\": 1}'); raise ValueError('too large')\n")
    assert check.run(part, 3.0, True)["why"] == "ValueError: too large"


def test_all_parts_together_take_at_most_eight_minutes(check):
    assert sum(part.seconds for part in check.PARTS) <= 480


def test_the_page_is_what_the_record_gives(check):
    assert check.PAGE.read_text() == check.page()


def test_a_record_of_a_gpu_becomes_the_section_and_one_of_a_cpu_is_refused(check, monkeypatch, tmp_path):
    page = tmp_path / "performance.md"
    page.write_text("# Performance\n\n## On a GPU\n\nold\n\n## After\n\nkept\n")
    monkeypatch.setattr(check, "PAGE", page)
    monkeypatch.setattr(check, "HISTORY", tmp_path / "gpu.csv")
    assert "Not measured" in check.page()
    card = {"part": "card", "status": "ok", "numbers": {"card": "a card", "date": "2026-01-02", "kfx": "0.2.0"}}
    flow = {"part": "flow", "status": "timed out", "why": "after 45 s", "numbers": {"a layer: ms": 1.23456}}
    found = tmp_path / "found.json"
    for rate in (7.0, 8.0):
        machine = {"part": "deep_machine", "status": "failed", "why": "a | b", "numbers": {"iterations a second": rate}}
        found.write_text("".join(f"{json.dumps(line)}\n" for line in (card, flow, machine)))
        check.record(found)
    text = page.read_text()
    assert text.startswith("# Performance\n\n## On a GPU\n\n`python scripts/check_gpu.py`")
    assert text.endswith("\n\n## After\n\nkept\n")
    assert "on a card, 2026-01-02:" in text
    assert "| flow | a layer: ms | 1.235 |\n| flow | timed out | after 45 s |\n" in text
    assert "| deep_machine | iterations a second | 8 |\n| deep_machine | failed | a / b |\n" in text
    assert "| 7 |" not in text, "the last record alone"
    assert len((tmp_path / "gpu.csv").read_text().splitlines()) == 1 + 2 * 7
    found.write_text(json.dumps({**card, "numbers": {**card["numbers"], "card": "cpu"}}))
    with pytest.raises(SystemExit, match="holds no numbers of a GPU"):
        check.record(found)
