"""What an attack found: configs that run code, closed terminals, damaged records, extreme numbers, bombs."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

from kfx import load_run
from tests.faults.words import SMALL


def command(*words):
    return [sys.executable, "-m", "kfx", *words]


def own(folder, name, text):
    path = folder / "own/experiment" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else f"# @package _global_\n{text}".encode())
    return ["--config-dir", "own", f"+experiment={name}"]


HYDRA = {
    "env_set": ("hydra: {job: {env_set: {GIT_CONFIG_COUNT: '1'}}}", "hydra.job.env_set.GIT_CONFIG_COUNT=1"),
    "callbacks": ("hydra: {callbacks: {x: {_target_: os.system, command: 'touch ran'}}}", "hydra.callbacks.x"),
    "re-exported": ("hydra: {callbacks: {x: {_target_: hydra.utils.os.system}}}", "hydra.callbacks.x"),
    "logging": ("hydra: {job_logging: {handlers: {f: {class: logging.FileHandler, filename: ran}}}}", "hydra.job_log"),
    "factory": ("hydra: {hydra_logging: {handlers: {f: {(): os.system, command: touch ran}}}}", "hydra.hydra_logging"),
    "launcher": ("hydra: {launcher: {_target_: os.system}}", "hydra.launcher._target_=os.system"),
    "nested target": ("hydra: {sweeper: {x: {_target_: os.system}}}", "Key 'x' not in"),
    "setup": ("hydra: {launcher: {setup: [touch ran]}}", "Key 'setup' not in"),
    "params": ("hydra: {sweeper: {params: {+experiment: 'a,b'}}}", "hydra.sweeper.params"),
    "chdir": ("hydra: {job: {chdir: true}}", "hydra.job.chdir=True"),
    "subdir": ("hydra: {output_subdir: x}", "hydra.output_subdir=x"),
    "resolver": ("dataset: {preprocess: ['${oc.env:HOME}']}", "dataset.preprocess[0]"),
    "nested resolver": ("published: {source: oc}\nseed: '${${published.source}.env:HOME}'", "seed=${${published"),
    "resolver in a name": ("seed: '${dataset.${oc.env:HOME}}'", "seed=${dataset.${oc.env"),
}


@pytest.mark.parametrize("case", HYDRA)
def test_no_file_brings_code_along(kfx, in_folder, case):
    text, shown = HYDRA[case]
    code, out, err = kfx("run", *own(in_folder, "bad", text), *SMALL)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert shown in err
    assert not (in_folder / "ran").exists()
    assert not (in_folder / "runs").exists()
    assert os.environ["HOME"] not in err


def test_what_a_sweep_starts_from_is_looked_at_too(kfx, in_folder):
    """A group that all jobs share, made harmless in each of them by one that is swept."""
    bad = "hydra: {hydra_logging: {handlers: {f: {class: logging.FileHandler, filename: victim, mode: w}}}}"
    good = "hydra: {hydra_logging: {handlers: {f: {class: null, filename: null, mode: null}}}}"
    for name, text in (("aaa/evil", bad), ("bbb/one", good), ("bbb/two", good)):
        path = in_folder / "own" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# @package _global_\n{text}\n")
    (in_folder / "victim").write_text("precious")
    code, _, err = kfx("run", "-m", "--config-dir", "own", "+aaa=evil", "+bbb=one,two", *SMALL)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert (in_folder / "victim").read_text() == "precious"


@pytest.mark.slow
def test_a_launcher_takes_its_own_settings_alone(kfx, in_folder):
    text = (
        "hydra:\n  runtime: {choices: {evil: {_target_: pandas.read_pickle, filepath_or_buffer: x}}}\n"
        "  launcher: {foo: '${hydra.runtime.choices.evil}'}"
    )
    code, _, err = kfx("run", "-m", *own(in_folder, "evil", text), "hydra/launcher=cores", "seed=0,1", *SMALL)
    assert (code, len(err.splitlines())) == (2, 1), err
    for word in ("+hydra.launcher.foo=1", "hydra.launcher.n_jobs='${seed}'", "hydra.sweep.subdir=x"):
        code, _, err = kfx("run", "-m", "hydra/launcher=cores", "seed=0,1", *SMALL, word)
        assert (code, len(err.splitlines())) == (2, 1), err
    assert not (in_folder / "runs").exists()


def test_nothing_is_unpickled_on_demand(kfx, in_folder):
    class Hostile:
        def __reduce__(self):
            return os.system, ("touch ran",)

    (in_folder / "job.pickle").write_bytes(pickle.dumps(Hostile()))
    code, _, err = kfx("run", "--experimental-rerun", "job.pickle")
    assert (code, "--experimental-rerun: would unpickle" in err) == (2, True)
    assert not (in_folder / "ran").exists()
    assert "hydra.searchpath: use --config-dir" in kfx("run", "hydra.searchpath=[pkg://os]")[2]


@pytest.mark.slow
def test_git_is_asked_in_a_clean_environment(kfx, monkeypatch, tmp_path):
    script = tmp_path / "hook"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    script.chmod(0o755)
    settings = {"COUNT": "1", "KEY_0": "core.fsmonitor", "VALUE_0": str(script)}
    for name, value in settings.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    assert kfx("run", *SMALL)[0] == 0
    assert not (tmp_path / "ran").exists()


# ---- the terminal


@pytest.mark.slow
@pytest.mark.parametrize(
    "redirection",
    [
        pytest.param("2>&1 >/dev/null | head -1", marks=pytest.mark.slow),
        pytest.param("2>&-", marks=pytest.mark.slow),
        pytest.param("2>/dev/full", marks=pytest.mark.slow),
        pytest.param(">/dev/full", marks=pytest.mark.slow),
        ">&- 2>&- <&-",
    ],
    ids=["broken pipe", "closed", "full", "full output", "nothing open"],
)
def test_printing_cannot_fail_a_run(in_folder, redirection):
    line = " ".join(command("run", *SMALL, "hydra.run.dir=r"))
    subprocess.run(["sh", "-c", f"{line} {redirection}"], capture_output=True, timeout=120)
    assert load_run("r").metrics["status"] == "completed"
    assert (in_folder / "r/trace.csv").read_text().startswith("iteration,"), "no library wrote into a file of the run"


@pytest.mark.slow
def test_an_encoding_without_lambda(in_folder):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for words in (["run", *SMALL, "hydra.run.dir=r"], ["compare", "r"]):
        done = subprocess.run(command(*words), capture_output=True, env=environment, timeout=120)
        assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


JAX = ["kernel=nngp", "kernel.backend=native"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "words", "code"),
    [
        pytest.param("MPLBACKEND", ["figures=true"], 0, marks=pytest.mark.slow),
        pytest.param("JAX_PLATFORMS", JAX, 2, marks=pytest.mark.slow),
        ("OMP_NUM_THREADS", [], 2),
    ],
)
def test_variables_with_nonsense_in_them(in_folder, variable, words, code):
    environment = {**os.environ, variable: "nonsense"}
    done = subprocess.run(command("run", *SMALL, *words), capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert code == 0 or f"{variable}=nonsense" in done.stderr


# ---- words and files


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["~sampler", "sampler.batch_size=20"], "sampler"),
        (["regularization=null"], "regularization=null"),
        (["kernel.trainable=[[sigma]]"], "kernel.trainable=[['sigma']]"),
        (["dataset.classes=[[1,2],3]"], "dataset.classes"),
        (["hydra.run.dir=${oc.env:NOT_SET}"], "NOT_SET"),
        (["experiment=khalid/three_bumps_rbf"], "write +experiment=khalid/three_bumps_rbf"),
        (["hydra/launcher=slurm"], "pip install 'kernel-flows[slurm]'"),
        (["-m", "seed=range(0)"], "seed=range(0): holds no value"),
        (["-m", "seed=range(1000000000)"], "at most 10000 jobs"),
        (["-m", "seed=0,1", "hydra.sweeper.params=3"], "hydra.sweeper.params"),
        (["-m", "seed=0,1", "hydra/launcher=cores", "hydra.launcher.n_jobs=0"], "hydra.launcher.n_jobs=0"),
        (["evaluation.repeats=1000000000000"], "evaluation.repeats=1000000000000"),
        (["evaluation.random_kernels=1000000000"], "evaluation.random_kernels=1000000000"),
        (["optimizer=flow_euler", "flow.record_layers=true", "optimizer.iterations=900000000"], "flow.record_layers"),
    ],
)
def test_one_line_each(kfx, in_folder, words, shown):
    flags, rest = (words[:1], words[1:]) if words[0] == "-m" else ([], words)
    code, out, err = kfx("run", *flags, *[w for w in SMALL if not any(w.split("=")[0] in r for r in rest)], *rest)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert shown in err
    assert not (in_folder / "runs").exists()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("kernel: {sigma: 2.0}\nkernel: {sigma: 3.0}", "duplicate key kernel"),
        ("kernel:\n\tsigma: 2.0", "line 3"),
        ("kernel: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        (b"\xff\xfe\x00", ""),
    ],
    ids=["duplicate", "tab", "tag", "bytes"],
)
def test_a_broken_file_of_ones_own(kfx, in_folder, text, shown):
    code, _, err = kfx("run", *own(in_folder, "broken", text), *SMALL)
    assert (code, len(err.splitlines())) == (2, 1), err
    assert shown in err


def test_a_misspelt_key_beside_an_experiment_of_ones_own(kfx, in_folder):
    code, _, err = kfx("run", *own(in_folder, "good", "kernel: {sigma: 2.0}"), *SMALL, "kernel.sigam=2")
    assert (code, "kernel.sigam: unknown key" in err) == (2, True)
