"""kfx from Python: runs, sweeps and comparisons, in threads and in notebooks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from html import unescape

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from nbclient import NotebookClient

import kfx
from kfx.interactive.shown import in_cell
from kfx.numerics.formatting import spread
from kfx.outcomes import Event, NumericalError
from kfx.record.verdict import verdict
from kfx.report.table import Table
from kfx.running import story

FEW = ("optimizer.iterations=4", "sampler.batch_size=40", "figures=false", "evaluation.batches=2")
TRACE = ("iteration", "rho", "objective", "regularization", "parameter.sigma")


def same(one, two):
    return all(np.array_equal(one.trace[name], two.trace[name]) for name in TRACE)


@pytest.mark.slow
def test_a_run_is_that_of_the_command(in_folder, capsys):
    here = kfx.run([*FEW, "seed=3", "hydra.run.dir=here"], progress=False)
    assert capsys.readouterr() == ("", ""), "nobody is told anything"
    command = [sys.executable, "-m", "kfx", "run", *FEW, "seed=3", "hydra.run.dir=there"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    there = kfx.load_run("there")
    assert same(here, there)
    assert here.metrics["identity"] == there.metrics["identity"]
    assert here.evaluation.equals(there.evaluation)
    assert here.kernel.parameters == there.kernel.parameters
    assert sorted(os.listdir("here")) == sorted(os.listdir("there"))


@pytest.mark.slow
def test_progress_is_on_the_error_stream_and_results_are_the_callers(in_folder, capsys):
    run = kfx.run(FEW)
    out, err = capsys.readouterr()
    assert out == ""
    assert "4/4" in err
    assert run.summary()[0].startswith("kernel")
    assert repr(run) == f"Run({run.directory}: completed)"


@pytest.mark.slow
def test_nothing_is_left_behind(in_folder):
    (in_folder / "conf").mkdir()
    (in_folder / "conf/mine.yaml").write_text("kernel: my own\n")
    before = {key: str(node) for key, node in ConfigStore.instance().repo.items() if key != "hydra"}
    variables = dict(os.environ)
    allowed, count = torch.backends.cudnn.allow_tf32, torch.get_num_threads()
    torch.backends.cudnn.allow_tf32 = True
    try:
        with initialize_config_dir(str(in_folder / "conf"), version_base="1.3"):
            kfx.run(FEW, progress=False)
            assert compose("mine").kernel == "my own", "one's own Hydra goes on"
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cudnn.allow_tf32 = allowed
    assert not GlobalHydra.instance().is_initialized()
    assert {key: str(node) for key, node in ConfigStore.instance().repo.items() if key != "hydra"} == before
    assert torch.get_num_threads() == count
    assert dict(os.environ) == variables


@pytest.mark.slow
def test_calls_from_several_threads_are_as_one_after_another(in_folder):
    alone = [kfx.run([*FEW, f"seed={seed}", f"hydra.run.dir=a{seed}"], progress=False) for seed in range(3)]
    found = {}

    def call(seed):
        found[seed] = kfx.run([*FEW, f"seed={seed}", f"hydra.run.dir=b{seed}"], progress=False)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(alone[seed], found[seed]) for seed in range(3))
    assert not same(alone[0], alone[1])


@pytest.mark.parametrize(
    ("words", "error", "expected"),
    [
        (["kernel.sigam=2"], kfx.ConfigError, "kernel.sigam: unknown key"),
        (["optimizer=adam,sgd"], kfx.ConfigError, "several values need a multirun"),
        (["-m", "seed=0,1"], kfx.ConfigError, "-m: is an option of the command"),
        ("seed=1", kfx.ConfigError, "expected a list of words"),
        (["dataset=table", "dataset.path=no.csv", "dataset.target=y"], kfx.KfxError, "no.csv: is not there"),
        (["+experiment=nope"], kfx.ConfigError, "experiment=nope: unknown option"),
    ],
)
def test_errors_have_the_words_of_the_command(in_folder, words, error, expected):
    with pytest.raises(error, match=expected.replace("+", r"\+")):
        kfx.run(words)
    assert issubclass(error, kfx.KfxError)
    assert not (in_folder / "runs").exists()


@pytest.fixture
def seed_1_fails(monkeypatch):
    usual = story.story

    def fail(config, record):
        if config.seed == 1:
            raise NumericalError(Event.DIVERGED, "scripted")
        usual(config, record)

    monkeypatch.setattr(story, "story", fail)


def test_a_failed_run_says_where_its_record_is(in_folder, seed_1_fails):
    with pytest.raises(kfx.RunError) as raised:
        kfx.run([*FEW, "hydra.run.dir=r", "seed=1"])
    assert raised.value.directory.name == "r"
    run = kfx.load_run(raised.value.directory)
    assert run.metrics["status"] == "failed"
    assert str(raised.value) == run.metrics["reason"]
    assert "failed" in run._repr_html_()


def test_a_completed_run_is_found_again(in_folder):
    first = kfx.run([*FEW, "hydra.run.dir=s/a"], progress=False)
    second = kfx.run([*FEW, "hydra.run.dir=s/b", "resume=true"], progress=False)
    assert second.directory.resolve() == first.directory.resolve()
    assert not (in_folder / "s/b").exists()


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_sweep_has_a_row_and_a_run_for_each_job(in_folder, capfd, jobs):
    words = ["optimizer=none,adam", "seed=0,1", *FEW, "hydra.sweep.dir=s"]
    sweep = kfx.sweep(words, jobs=jobs, progress=False)
    assert capfd.readouterr() == ("", "")
    assert (sweep.table["status"] == "completed").all()
    assert (in_folder / "s/sweep.csv").is_file()
    assert len(sweep.runs) == 4
    assert "4 of 4 jobs completed" in repr(sweep)
    assert "<table" in sweep._repr_html_()
    unmoved = sweep.table[sweep.table["overrides"].str.contains("optimizer=none")]
    assert unmoved["rho_initial"].tolist() == unmoved["rho_final"].tolist(), "the same batches, the same kernel"
    for run, row in zip(sweep.runs, sweep.table.to_dict("records"), strict=True):
        rho, held_out = run.metrics["rho"], run.metrics["held_out"]["rho"]
        assert (rho["initial"], rho["final"]) == (held_out["initial"]["mean"], held_out["trained"]["mean"])
        assert (row["rho_initial"], row["rho_final"]) == (rho["initial"], rho["final"])
        batches = run.trace["rho"]
        shown = {"first": batches.iloc[0], "last": batches.iloc[-1], "best": batches.min()}
        assert run.metrics["rho_batch"] == shown
        assert row["rho_last_batch"] == shown["last"] != row["rho_final"]
    table = kfx.compare(sweep, by="optimizer", metric="mse")
    assert table["optimizer"].tolist() == ["adam", "none"]
    assert table["n"].tolist() == [2, 2]
    assert kfx.compare(*sweep.runs, by=["optimizer"], metric="mse").equals(table)
    assert kfx.compare(sweep.runs, by="optimizer", metric="mse").equals(table)
    again = kfx.sweep([*words, "resume=true"], jobs=jobs, progress=False)
    assert again.table["directory"].tolist() == sweep.table["directory"].tolist()


@pytest.mark.slow
def test_a_failed_job_does_not_stop_the_others(in_folder, seed_1_fails):
    sweep = kfx.sweep(["seed=1,0", *FEW, "hydra.sweep.dir=s"], progress=False)
    assert sorted(sweep.table["status"]) == ["completed", "failed"]
    assert len(sweep.runs) == 1
    with pytest.warns(UserWarning, match="left out: .*s/0: failed"):
        assert len(kfx.compare(sweep, metric="mse")) == 1


@pytest.mark.slow
def test_a_sweep_takes_nothing_from_elsewhere_unless_it_resumes(in_folder):
    for seed in (0, 1):
        kfx.run([*FEW, f"seed={seed}", f"hydra.run.dir=s/{seed}"], progress=False)
    (in_folder / "t").mkdir()
    (in_folder / "t/0").write_text("no folder")
    with pytest.warns(UserWarning, match="job 1 of 2"):
        sweep = kfx.sweep(["seed=0,1", *FEW, "hydra.sweep.dir=t"], progress=False)
    assert sweep.table["status"].tolist() == ["missing", "completed"]
    taken = kfx.sweep(["seed=0,1", *FEW, "resume=true", "hydra.sweep.dir=u"], progress=False)
    assert taken.table["status"].tolist() == ["completed"] * 2


def test_comparisons_that_cannot_be(in_folder):
    with pytest.raises(kfx.ConfigError, match="none was given"):
        kfx.compare()
    with pytest.raises(kfx.ConfigError, match=r"jobs=1\.5"):
        kfx.sweep(["seed=0,1"], jobs=1.5)
    with pytest.raises(kfx.ConfigError, match="jobs=0"):
        kfx.sweep(["seed=0,1"], jobs=0)


@pytest.mark.slow
def test_pictures_are_drawn_on_axes_of_ones_own(in_folder):
    run = kfx.run(FEW, progress=False)
    figure, axes = plt.subplots(1, 2)
    assert run.plot("rho", ax=axes[1]) is figure
    assert axes[1].get_ylabel() == r"$\rho$"
    assert not axes[0].has_data()
    assert axes[1].get_legend() is not None
    assert run.plot("parameters").axes[0].get_ylabel() == r"$\sigma$"
    with pytest.raises(kfx.ConfigError, match="expected one of rho, parameters"):
        run.plot("roh")
    with pytest.raises(kfx.ConfigError, match="has no data for it"):
        run.plot("flow_positions")
    polarized = kfx.run([*FEW, "objective=rho_polarized"], progress=False)
    with pytest.raises(kfx.ConfigError, match="2 pairs of axes"):
        polarized.plot("rho", ax=axes[0])
    plt.close(figure)
    assert run.report().read_text().startswith("<!")


@pytest.mark.slow
def test_an_option_made_in_python_is_said_in_the_record(in_folder, own_registry):
    from kfx.options import FormulaOption, option, parameter

    @option("kernel", "cosine_here", "exp(-r^2) of one length")
    class Cosine(FormulaOption):
        sigma: float = parameter(1.0, 1e-2, 1e2, "length")

        @staticmethod
        def formula(x, y, sigma):
            return torch.exp(-(torch.cdist(x, y) ** 2) / sigma)

    run = kfx.run(["kernel=cosine_here", *FEW, "hydra.run.dir=r"], progress=False)
    assert run.kernel.parameters["sigma"] != 1.0
    assert '"kernel=cosine_here": "tests.test_interactive"' in (in_folder / "r/environment.json").read_text()


def test_a_cell_shows_what_the_call_returns(in_folder):
    run = kfx.run([*FEW, "hydra.run.dir=r"], progress=False)
    shown, said = run._repr_html_(), verdict(run)
    assert said.startswith("Training reduced the test mse from ")
    assert f"<p>{said}</p>" in shown
    lines = dict(line.split(maxsplit=1) for line in run.summary() if line.strip().startswith(("kernel", "results")))
    cells = [unescape(cell) for cell in re.findall(r"<td[^>]*>([^<]*)</td>", shown)]
    for label, text in lines.items():
        assert cells[cells.index(label) + 1] == text
    assert str(run).splitlines()[1:] == [said, *run.summary()]


def test_a_table_in_a_cell_cuts_and_breaks_no_label(in_folder):
    long = "a label of many words " * 8
    shown = in_cell(Table(["what", "value#"], [[long.strip(), "1.0 ± 0.1"]], marks=["*"], marked=1, note="the best"))
    assert long.strip() in shown
    assert "1.0 ± 0.1 *" in shown
    assert "* the best" in shown
    styles = re.findall(r'<td style="([^"]*)"', shown)
    assert all("white-space: nowrap" in style and "max-width: none" in style for style in styles)


def test_a_sweep_in_a_cell_has_its_means_and_all_of_its_words(in_folder):
    kernel = "kernel.bounds={sigma:[0.123456789,123.456789]}"
    sweep = kfx.sweep(["optimizer=none,adam", "seed=0,1", kernel, *FEW, "hydra.sweep.dir=s"], progress=False)
    shown = sweep._repr_html_()
    assert "mean ± sd over seeds" in shown
    table = kfx.compare(sweep, by="optimizer")
    for row in table.to_dict("records"):
        assert spread(row["mse"], row["mse_sd"]) in shown
    for job in ("optimizer=none seed=0", "optimizer=adam seed=1"):
        assert job in shown
    assert "..." not in shown


CELLS = (
    "import kfx",
    f"run = kfx.run({[*FEW]!r})\nrun",
    "run.plot('rho')",
    f"sweep = kfx.sweep(['optimizer=none,adam', *{FEW!r}])\nsweep",
    "kfx.compare(sweep, by='optimizer', metric='mse')",
    f"kfx.sweep(['optimizer=none,adam', *{FEW!r}], jobs=2)",
)


@pytest.mark.slow
def test_a_notebook_shows_bars_tables_and_pictures(in_folder):
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
    shown = [[kind for output in cell.outputs for kind in output.get("data", {})] for cell in cells]
    assert "text/html" in shown[1]
    bars = [output for output in cells[1].outputs if "<progress" in str(output.get("data", {}).get("text/html"))]
    assert any("4 of 4" in bar["data"]["text/html"] for bar in bars)
    assert "image/png" in shown[2]
    assert "<table" in str(cells[3].outputs)
    of_jobs, of_running = (
        output["data"]["text/html"] for output in cells[3].outputs if "<progress" in str(output.get("data"))
    )
    assert "jobs" in of_jobs
    assert "2 of 2" in of_jobs
    assert "job 2 of 2" in of_running, "the bars of the jobs replace each other"
    (bar,) = [output for output in cells[5].outputs if "<progress" in str(output.get("data", {}).get("text/html"))]
    assert "jobs" in bar["data"]["text/html"]
    assert "2 of 2" in bar["data"]["text/html"]
    assert not [output for cell in cells for output in cell.outputs if output.get("name") == "stderr"]
