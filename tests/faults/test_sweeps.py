"""Sweeps that are killed, writers that race, results that are compared."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import shlex
import signal
import time

import numpy as np
import pytest

from kfx import load_run
from kfx.numerics import linear_algebra
from kfx.outcomes import Event
from kfx.record.search import runs_below
from tests.faults.conftest import FULL, needs_full
from tests.faults.harness import Command, finish, rows, wait_for

SMALL = [
    "dataset=digits",
    "dataset.n_train=60",
    "dataset.n_test=30",
    "sampler.batch_size=20",
    "optimizer.iterations=30",
    "evaluation.n_interpolation=[40]",
    "device.threads=1",
    "device.precision_check=off",
    "figures=false",
    "checkpoint.iterations=5",
]


def sweep_words(folder, jobs, failing):
    """A sweep over experiments of our own; in some of them the targets overflow."""
    options = folder / "options/experiment"
    options.mkdir(parents=True)
    for i in range(jobs):
        dataset, bad = ("gp_sample", "dataset:\n  noise: 1e+200\n") if i < failing else ("digits", "")
        (options / f"job{i}.yaml").write_text(
            f"# @package _global_\ndefaults:\n  - override /dataset: {dataset}\nseed: {100 + i}\n{bad}"
        )
    names = ",".join(f"job{i}" for i in range(jobs))
    small = [word for word in SMALL if word != "dataset=digits"]  # the experiments say that themselves
    return ["run", "-m", f"--config-dir={folder / 'options'}", f"+experiment={names}", *small, "hydra.sweep.dir=s"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_sweep_runs_each_job_once(tmp_path, full, counts):
    rng = random.Random(0)
    jobs, failing = (24, 3) if full else (3, 1)
    words = [*sweep_words(tmp_path, jobs, failing), "resume=true"]
    for _ in range(2 if full else 1):
        command = Command(tmp_path, *words)
        done = sum(run.status in ("completed", "failed") for run in runs_below([tmp_path / "s"]))
        target = done + rng.randint(1, jobs // 3)
        deadline = time.monotonic() + 120
        while sum(run.status in ("completed", "failed") for run in runs_below([tmp_path / "s"])) < target:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(rng.random() * 0.3)
        command.signal(signal.SIGKILL)
        command.wait()
        counts["injected"] += 1
    command = Command(tmp_path, *words)
    assert command.wait(400) != 0, "some jobs fail"
    with open(tmp_path / "s/sweep.csv", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert len(table) == jobs
    assert [row["status"] for row in table].count("completed") == jobs - failing
    failed = [row for row in table if row["status"] == "failed"]
    assert len(failed) == failing
    assert all(row["reason"].startswith("diverged") for row in failed)
    completed = [run for run in runs_below([tmp_path / "s"]) if run.status == "completed"]
    identities = [run.identity for run in completed]
    repeated = len(identities) - len(set(identities))
    for run in completed:
        events = [line.split(",")[1] for line in (run.directory / "history.csv").read_text().splitlines()]
        repeated += events.count("started") - 1
        assert events.count("completed") <= 1, "none if the kill came between the status and its line of history"
    counts["jobs repeated"] += repeated
    assert repeated == 0
    again = Command(tmp_path, *words)
    again.wait(400)
    assert again.output().count("completed already") >= jobs - failing


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_writers_race(tmp_path, full, counts):
    for trial in range(50 if full else 1):
        folder = tmp_path / str(trial)
        folder.mkdir()
        words = ["run", *SMALL, "hydra.run.dir=r"]
        both = [Command(folder, *words) for _ in range(2)]
        codes = sorted(command.wait() for command in both)
        counts["races"] += 1
        assert codes[0] == 0, both[0].output()
        assert codes[1] in (1, 2), codes
        trace = load_run(folder / "r").trace
        assert trace["iteration"].tolist() == list(range(30)), "nothing interleaves"
        assert load_run(folder / "r").metrics["status"] == "completed"
        log = both[0].output()
        assert "is writing to it" in log or "holds a run already" in log


@pytest.mark.slow
def test_a_run_of_another_identity_is_left_alone(tmp_path, kfx, counts):
    """Alive, interrupted or completed: with resume=true too, it keeps its folder and every file in it."""
    words = ["run", *SMALL, "optimizer.iterations=100000", "hydra.run.dir=r", "resume=true"]
    alive = Command(tmp_path, *words)
    wait_for(lambda: rows(tmp_path / "r") > 5)
    other = Command(tmp_path, *words, "seed=1")
    assert other.wait() == 1
    assert "is writing to it" in other.output()
    same = Command(tmp_path, *words)
    assert same.wait() == 0, "who loses a race to an equal run"
    assert "all is well, the same run is under way" in same.output()
    before = rows(tmp_path / "r")
    wait_for(lambda: rows(tmp_path / "r") > before)
    alive.signal(signal.SIGTERM)
    assert alive.wait() == 143
    kept = {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir() if path.is_file()}
    assert Command(tmp_path, *words, "seed=1").wait() == 2
    assert "holds a run of another config" in same.output()
    assert {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir() if path.is_file()} == kept
    assert load_run(tmp_path / "r").config.seed == 0
    assert not list((tmp_path / "r").glob("failed-*"))
    short = [*words, "optimizer.iterations=5"]
    assert Command(tmp_path, *short, "hydra.run.dir=done").wait() == 0
    assert Command(tmp_path, *short, "hydra.run.dir=done", "seed=1").wait() == 2
    assert load_run(tmp_path / "done").config.seed == 0
    counts["injected"] += 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sweep_started_twice_at_once_runs_each_job_once(tmp_path, full, counts):
    jobs = 8 if full else 2
    seeds = ",".join(map(str, range(jobs)))
    words = ["run", "-m", *SMALL, "optimizer.iterations=300", f"seed={seeds}", "hydra.sweep.dir=s", "resume=true"]
    both = [Command(tmp_path, *words) for _ in range(2)]
    for command in both:
        command.wait(400)
    counts["races"] += jobs
    for i in range(jobs):
        run = load_run(tmp_path / "s" / str(i))
        assert (run.metrics["status"], run.config.seed, len(run.trace)) == ("completed", i, 300)
        events = [line.split(",")[1] for line in (run.directory / "history.csv").read_text().splitlines()]
        assert [event for event in events if event not in set(Event)] == ["event", "started", "completed"]
    assert not list((tmp_path / "s").glob("*/failed-*"))


def test_a_crash_leaves_no_lock(tmp_path, kfx):
    from kfx.lock import Lock
    from kfx.outcomes import HeldError

    holder = Lock(tmp_path)
    with pytest.raises(HeldError, match=r"process \d+ on .* is writing to it"):
        Lock(tmp_path)
    holder.release()
    command = Command(tmp_path, "run", *SMALL, "optimizer.iterations=100000", "hydra.run.dir=r")
    while not (tmp_path / "r/trace.csv").exists():
        time.sleep(0.02)
    code, _, err = kfx("resume", str(tmp_path / "r"))
    assert code == 1
    assert f"process {command.process.pid} on" in err
    command.signal(signal.SIGKILL)
    command.wait()
    assert (tmp_path / "r/.writer.json").exists(), "the crash left its note"
    Lock(tmp_path / "r").release()


@pytest.mark.slow
def test_resume_true_skips_what_is_completed(kfx, in_folder):
    words = ["run", *SMALL, "resume=true"]
    assert kfx(*words)[0] == 0
    code, _, err = kfx(*words)
    assert code == 0
    assert "completed already" in err
    assert len(runs_below([in_folder / "runs"])) == 1
    assert kfx(*words, "seed=1")[0] == 0
    assert kfx(*words, "device.threads=2")[0] == 0, "threads are no part of what a run is"
    assert len(runs_below([in_folder / "runs"])) == 2


@pytest.mark.slow
def test_a_failure_is_never_reused_and_retried_by_number(kfx, in_folder, monkeypatch):
    calls, cholesky = iter(range(1000)), linear_algebra.cholesky

    def fail_at_first(*arguments):
        if next(calls) < 2:
            raise MemoryError
        return cholesky(*arguments)

    monkeypatch.setattr(linear_algebra, "cholesky", fail_at_first)
    words = ["run", *SMALL, "resume=true", "hydra.run.dir=r"]
    assert kfx(*words)[0] == 1
    assert load_run("r").metrics["status"] == "failed"
    code, _, err = kfx(*words, "retries=1")
    assert code == 0
    assert "trying again, 1 retry left" in err
    assert load_run("r").metrics["status"] == "completed"
    assert {p.name for p in (in_folder / "r").glob("failed-*")} == {"failed-1", "failed-2"}


@pytest.mark.slow
def test_jobs_share_the_cores(kfx, in_folder):
    words = ["run", "-m", *(w for w in SMALL if "threads" not in w), "seed=0,1", "hydra.sweep.dir=s"]
    assert kfx(*words, "hydra/launcher=cores", "hydra.launcher.n_jobs=2")[0] == 0
    for i in range(2):
        environment = json.loads((in_folder / f"s/{i}/environment.json").read_text())
        assert environment["threads"] == max(len(os.sched_getaffinity(0)) // 2, 1)
    assert "2 of 2" in kfx(*words, "resume=true")[2]


LONG = [
    "run",
    "-m",
    *(word for word in SMALL if "threads" not in word),
    "optimizer.iterations=4000",
    "seed=0,1,2",
    "hydra.sweep.dir=s",
    "hydra/launcher=cores",
    "resume=true",
]


def under_way(folder):
    """A sweep on two cores with two jobs in the middle of their fits: its command, in a group of its own."""
    command = Command(folder, *LONG, own_group=True)
    wait_for(lambda: min(rows(folder / "s/0"), rows(folder / "s/1")) > 20)
    return command


def nobody_writes(folder):
    before = [rows(folder / "s" / str(i)) for i in range(3)]
    time.sleep(0.5)
    assert [rows(folder / "s" / str(i)) for i in range(3)] == before


STOPS = {
    "SIGKILL": lambda pid: os.kill(pid, signal.SIGKILL),
    "SIGINT to the group": lambda pid: os.killpg(pid, signal.SIGINT),
    "SIGTERM": lambda pid: os.kill(pid, signal.SIGTERM),
    "SIGINT": lambda pid: os.kill(pid, signal.SIGINT),
    "SIGTERM to the group": lambda pid: os.killpg(pid, signal.SIGTERM),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop", STOPS if FULL else ["SIGINT to the group", pytest.param("SIGKILL", marks=pytest.mark.slow)]
)
def test_a_stopped_sweep_on_cores_leaves_no_orphan_and_starts_nothing(tmp_path, stop, counts):
    command = under_way(tmp_path)
    STOPS[stop](command.process.pid)
    code = command.wait(60)
    counts["injected"] += 1
    killed = stop == "SIGKILL"
    assert code == (-9 if killed else 130 if "SIGINT" in stop else 143)
    wait_for(lambda: all(load_run(tmp_path / "s" / str(i)).metrics["status"] == "interrupted" for i in range(2)))
    nobody_writes(tmp_path)
    assert not (tmp_path / "s/2/metrics.json").exists()
    if not killed:
        with open(tmp_path / "s/sweep.csv", newline="") as stream:
            assert [row["status"] for row in csv.DictReader(stream)] == ["interrupted", "interrupted", "missing"]
    assert "Traceback" not in (tmp_path / "log").read_text()


@needs_full
@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, "killed"), (signal.SIGTERM, "interrupted")])
def test_a_worker_that_is_killed_loses_its_own_job_alone(tmp_path, number, status, counts):
    command = under_way(tmp_path)
    victim = json.loads((tmp_path / "s/0/.writer.json").read_text())["pid"]
    os.kill(victim, number)  # as when memory runs out
    counts["injected"] += 1
    assert command.wait(200) != 0
    with open(tmp_path / "s/sweep.csv", newline="") as stream:
        assert [row["status"] for row in csv.DictReader(stream)] == [status, "completed", "completed"]
    ended = "job 1 of 3: its process ended by SIGKILL" in (tmp_path / "log").read_text()
    assert ended == (number == signal.SIGKILL)
    again = Command(tmp_path, *LONG)
    assert again.wait(200) == 0
    counts["resumed"] += 1


DRAWN = ["run", "-m", *(word for word in SMALL if word != "figures=false"), "optimizer.iterations=5", "report=true"]
DRAWN += ["seed=0,1", "hydra.sweep.dir=s w"]
PICTURES = {"evaluation.png", "parameters.png", "rho.png"}


def drawing(folder, command):
    """Wait until a job's results are whole, so that its pictures are drawn."""
    paths = [folder / "s w" / str(i) / "metrics.json" for i in range(2)]
    over = lambda: any(path.is_file() and '"completed"' in path.read_text() for path in paths)  # noqa: E731
    wait_for(lambda: over() or not command.process.is_alive())


CAUGHT = [("basic", "SIGINT"), ("cores", "SIGINT"), ("basic", "SIGTERM"), ("cores", "SIGTERM"), ("basic", "SIGKILL")]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("launcher", "kind"), CAUGHT if FULL else CAUGHT[:1])
def test_a_sweep_caught_while_it_draws_says_how_to_go_on_and_its_pictures_come(tmp_path, launcher, kind, full, counts):
    rng = random.Random(f"{launcher} {kind}")
    for trial in range(5 if full else 1):
        folder = tmp_path / str(trial)
        folder.mkdir()
        words = [*DRAWN, f"hydra/launcher={launcher}"]
        command = Command(folder, *words, own_group=True)
        drawing(folder, command)
        time.sleep(rng.uniform(0, 4) if full else 0.5)
        number = getattr(signal, kind)
        with contextlib.suppress(ProcessLookupError):  # it was over
            os.killpg(command.process.pid, number)
        code, said = command.wait(60), command.output()
        counts["injected"] += 1
        if "2 of 2 jobs completed" in said and "interrupted" not in said:  # it was over
            continue
        again = ["kfx", *words, "resume=true"]
        if kind != "SIGKILL":
            assert code == 128 + number, said
            lines = said.splitlines()
            assert lines[-1].startswith("kfx: interrupted; go on with kfx run -m ")
            again = shlex.split(lines[-1].partition(" go on with ")[2])
            assert not [line for line in lines if line.rfind("kfx: ") > 0], said
            for leak in ("Exception ignored", "Traceback", "Fatal", "KeyError", "AttributeError"):
                assert leak not in said, said
        assert finish(folder, *again[1:]) == 0, (folder / "log").read_text()
        counts["resumed"] += 1
        for i in range(2):
            run = folder / "s w" / str(i)
            assert {path.name for path in (run / "figures").iterdir()} == PICTURES
            assert (run / "report.html").is_file()
            assert not (run / ".undrawn").exists()
            assert (run / "history.csv").read_text().count("completed") == 1, "what was computed is not computed again"


@pytest.mark.slow
def test_pictures_that_a_kill_left_undrawn_come_with_resume(kfx, in_folder, counts):
    words = [
        *(word for word in SMALL if word != "figures=false"),
        "figures=true",
        "optimizer.iterations=5",
        "hydra.run.dir=r",
    ]
    assert kfx("run", *words)[0] == 0
    assert kfx("resume", "r")[0] == 2, "nothing is left to do"
    before = {path.name: path.read_bytes() for path in (in_folder / "r/figures").iterdir()}
    assert set(before) == PICTURES
    (in_folder / "r/.undrawn").touch()  # as a kill leaves it
    (in_folder / "r/figures/rho.png").write_bytes(b"half a picture")
    code, out, _ = kfx("resume", "r")
    assert (code, "pictures    r/figures: " in out) == (0, True)
    assert {path.name: path.read_bytes() for path in (in_folder / "r/figures").iterdir()} == before
    (in_folder / "r/.undrawn").touch()
    (in_folder / "r/figures/rho.png").unlink()
    code, _, err = kfx("run", *words, "resume=true")
    assert (code, "completed already" in err) == (0, True)
    assert (in_folder / "r/figures/rho.png").read_bytes() == before["rho.png"]
    assert not (in_folder / "r/.undrawn").exists()
    counts["resumed"] += 2


@pytest.mark.slow
def test_an_interrupted_study_says_how_to_go_on(tmp_path, counts):
    words = "optimizer.iterations=100000"
    command = Command(tmp_path, "study", "momentum", "--set", words)
    run = tmp_path / f"runs/study/momentum,{words}/SGD/run"
    wait_for(lambda: rows(run) > 3)
    command.signal(signal.SIGINT)
    assert command.wait() == 130
    assert command.output().splitlines()[-1] == "kfx: interrupted; the same command goes on"
    assert load_run(run).metrics["status"] == "interrupted"
    counts["injected"] += 1


# ---- identity, rerun and comparison


def test_identity(monkeypatch):
    from kfx.experiment.plan import Plan

    def of(*overrides, checksums=None):
        monkeypatch.setattr("kfx.experiment.identity.data_checksums", lambda config: checksums or {})
        return Plan.of_words(overrides).identity

    base = of()
    same = ("device.threads=1", "figures=false", "resume=true", "retries=3", "checkpoint.seconds=1", "hydra.run.dir=x")
    assert {of(word) for word in same} == {base}
    other = [of("seed=1"), of("kernel.sigma=2"), of("device.dtype=float32"), of(checksums={"file": "00"})]
    assert len({base, *other}) == 5


@pytest.mark.slow
def test_rerun_repeats_bit_for_bit(kfx, in_folder):
    kfx("run", *SMALL, "hydra.run.dir=r")
    code, out, _ = kfx("rerun", "r", "--output", "again")
    assert code == 0
    assert "bit for bit" in out
    trace = (in_folder / "r/trace.csv").read_text()
    (in_folder / "r/trace.csv").write_text(trace.replace("\n0,0.", "\n0,0.9", 1))
    code, out, _ = kfx("rerun", "r", "--output", "changed")
    assert code == 1
    assert "DIFFERENT: trace, rho: largest relative difference" in out
    assert kfx("rerun", "nothing")[0] == 2


def test_rerun_on_changed_data_names_the_file_and_computes_nothing(kfx, in_folder):
    from kfx.files import digest

    table = in_folder / "d.csv"
    table.write_text("a,y\n" + "".join(f"{i % 11},{i % 7}.5\n" for i in range(60)))
    words = ["dataset=table", "dataset.path=d.csv", "dataset.target=y", "sampler.batch_size=20"]
    assert kfx("run", *words, "optimizer.iterations=3", "figures=false", "hydra.run.dir=r")[0] == 0
    before = digest(table, "sha256")
    for content in (table.read_text() + "60,4\n", table.read_text().replace("a,y", "a,z")):
        table.write_text(content)
        code, out, err = kfx("rerun", "r", "--output", "again")
        now = digest(table, "sha256")
        assert (code, out) == (3, "")
        assert err.startswith(
            f"kfx: r: its data have changed: d.csv (SHA-256 {before[:12]}… then, {now[:12]}… now); put the"
        )
        assert len(err.splitlines()) == 1
        assert not (in_folder / "again").exists()


def test_rerun_of_a_changed_config_is_no_repetition(kfx, record):
    config = record / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1"))
    code, out, err = kfx("rerun", "r", "--output", "again")
    assert (code, out) == (3, "")
    assert err == "kfx: r: its config.yaml has changed since it ran; use the new one with kfx run\n"


def test_rerun_says_which_version_computed_the_record(kfx, record):
    from kfx import __version__

    environment = json.loads((record / "environment.json").read_text())
    (record / "environment.json").write_text(json.dumps({**environment, "kfx": "0.0.9"}))
    metrics = json.loads((record / "metrics.json").read_text())
    (record / "metrics.json").write_text(json.dumps({**metrics, "identity": "of another version"}))
    code, out, err = kfx("rerun", "r", "--output", "again")
    assert (code, "bit for bit" in out) == (0, True)
    assert f"kfx: warning: r: was computed by kfx 0.0.9; this is kfx {__version__}\n" in err


@pytest.mark.slow
def test_compare(kfx, in_folder):
    kfx("run", "-m", *SMALL, "optimizer=none,adam", "seed=0,1,2", "hydra.sweep.dir=s")
    code, _, _ = kfx("compare", "s", "--by", "optimizer", "--csv", "t.csv", "--latex", "t.tex", "--figure", "t.png")
    assert code == 0
    import pandas as pd

    table = pd.read_csv("t.csv").set_index("optimizer")
    runs = [load_run(in_folder / "s" / str(i)) for i in range(6)]
    for optimizer in ("none", "adam"):
        own = [r for r in runs if r.config.optimizer.name == optimizer]
        values = [
            next(e["mean"] for e in r.metrics["evaluation"] if (e["kernel"], e["metric"]) == ("trained", "accuracy"))
            for r in own
        ]
        assert table.loc[optimizer, "n"] == 3
        assert table.loc[optimizer, "accuracy"] == pytest.approx(np.mean(values))
        assert table.loc[optimizer, "accuracy_sd"] == pytest.approx(np.std(values, ddof=1))
    assert r"\toprule" in (in_folder / "t.tex").read_text()
    assert (in_folder / "t.png").read_bytes().startswith(b"\x89PNG")
    for words, message in (
        (["--by", "kernel"], "runs differ in optimizer"),
        (["--by", "optimizer", "--metric", "recall"], "--metric recall"),
        (["--by", "colour"], "--by colour: no run has such a key"),
        (["--by", "optimizer", "--n-interpolation", "7"], "--n-interpolation 7"),
    ):
        code, _, err = kfx("compare", "s", *words)
        assert code == 2
        assert message in err
        assert len(err.splitlines()) == 1
    assert kfx("compare", "s", "--by", "kernel", "--mix")[0] == 0
    assert kfx("compare", "nowhere")[0] == 2


# ---- security


@pytest.mark.parametrize(
    "word",
    [
        "hydra.launcher._target_=os.system",
        "hydra.sweeper._target_=subprocess.run",
        "+hydra.callbacks.x._target_=os.system",
        "+hydra.callbacks.x._target_=hydra.utils.get_method",
        "+dataset@hydra.callbacks.x=table",
        "+kernel.bounds.sigma._target_=os.system",
        "+dataset._target_=builtins.eval",
        "kernel.sigma=${oc.env:HOME}",
        "seed=${oc.decode:1}",
        "dataset.preprocess=['${oc.env:PATH}']",
        "+published.source=${oc.env:HOME}",
    ],
)
def test_no_config_constructs_or_reads_the_environment(kfx, in_folder, word):
    code, _, err = kfx("run", *SMALL, word)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert os.environ["HOME"] not in err.replace(str(in_folder), "")
    assert not (in_folder / "runs").exists()
