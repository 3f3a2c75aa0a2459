"""How runs of the command end, and what other commands make of them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from kfx import load_run
from kfx.files import GrowingFile
from kfx.kernels import RBF
from tests.words import SMALL


def test_data_where_and_verify(kfx, in_folder):
    code, out, _ = kfx("data", "where", "mnist")
    assert code == 0
    assert out.count("missing") == 4
    assert kfx("data", "verify", "mnist")[0] == 1
    folder = in_folder / "cache/mnist"
    folder.mkdir(parents=True)
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"other")
    assert "not the published file" in kfx("data", "verify", "mnist")[1]


def test_data_verify_real(kfx, real_data):
    code, out, _ = kfx("data", "verify", "mnist", "fashion_mnist")
    assert code == 0
    assert out.count("as published") == 8


def test_load_run_of_nothing(in_folder):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        load_run(in_folder)


def test_a_trace_without_its_first_line_reads_as_empty(kfx, in_folder):
    kfx("run", *SMALL, "hydra.run.dir=r")
    (in_folder / "r/trace.csv").write_text("")
    assert load_run("r").trace.empty


@pytest.mark.slow
def test_list_filters_and_knows_options_of_ones_own(kfx, in_folder):
    out = kfx("list", "experiment", "darcy", "boston", "--names")[1].split()
    assert "darcy/table_5_1_boston" in out
    assert all(name.startswith("darcy/") and "boston" in name for name in out)
    assert kfx("list", "experiment", "no-such-word")[0] == 2
    out = kfx("list", "experiment", "darcy", "Fig. 3.3")[1]
    assert "kfx run +experiment=darcy/swiss_roll_80 flow.step_size=0.2 optimizer.iterations=10000  # Darcy" in out
    assert "table_5_11" not in kfx("list", "experiment", "darcy", "Table 5.1")[1]
    (in_folder / "own/experiment").mkdir(parents=True)
    (in_folder / "own/experiment/mine.yaml").write_text("# @package _global_\n# What I try\nseed: 3\n")
    assert "mine" in kfx("list", "experiment", "What I try", "--config-dir", "own")[1]


@pytest.mark.slow
def test_jobs_say_which_they_are(kfx):
    code, _, err = kfx("run", "-m", *SMALL, "seed=0,1", "hydra.sweep.dir=s")
    assert code == 0
    assert "job 1 of 2 · digits rbf adam" in err
    assert "job 2 of 2 · digits rbf adam" in err


def test_the_objective_is_shown_before_rho(kfx):
    code, out, err = kfx("run", *SMALL, "objective=loo", "hydra.run.dir=r")
    assert code == 0
    assert "digits rbf adam 6/6  loo 0." in err
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["kernel", "loo", "rho"]


def test_parts_of_sums_have_readable_names(kfx):
    parts = "kernel.parts=[{name: rbf,sigma: 2.0},{name: matern,coefficient: 0.7},{name: rbf,sigma: 0.5}]"
    code, out, err = kfx("run", *SMALL, "kernel=sum", parts)
    assert code == 0
    for name in ("rbf 1 sigma 2 → ", "rbf 2 sigma 0.5 → ", "matern coefficient 0.7 → "):
        assert name in out
    assert "rbf 1 sigma 2" in err
    from kfx.kernels.names import readable

    assert readable("0.0.sigma", {"parts": [{"name": "sum", "parts": [{"name": "laplace"}]}]}) == "sum laplace sigma"
    assert readable("weight_variance.2", {"name": "cnngp"}) == "weight_variance.2"


@pytest.mark.slow
def test_compare_says_what_it_compares(kfx, in_folder):
    kfx("run", "-m", *SMALL, "objective=loo", "optimizer=none,adam", "hydra.sweep.dir=s")
    kfx("run", "dataset=diabetes", *SMALL[1:2], "dataset.n_test=60", "sampler.batch_size=30", "hydra.run.dir=t")
    code, out, err = kfx("compare", "s", "t", "--by", "optimizer")
    assert code == 0
    for word in ("data set digits", "kernel rbf", "N_I 120", "objective before", "rho after"):
        assert word in " ".join(out.split())
    assert "left out: --metric accuracy: " in err
    held_out = load_run("s/1").metrics["held_out"]["rho"]
    kfx("compare", "s", "--by", "optimizer", "--csv", "t.csv")
    import pandas as pd

    row = pd.read_csv("t.csv").set_index("optimizer").loc["adam"]
    assert row["rho_final"] == pytest.approx(held_out["trained"]["mean"])
    kfx("compare", "s", "--by", "optimizer", "--latex", "t.tex")
    assert "data set digits" in (in_folder / "t.tex").read_text()


@pytest.mark.slow
def test_compare_tests_what_is_worse_than_the_best(kfx, in_folder):
    from scipy.stats import ttest_rel

    words = ["dataset=digits", "dataset.n_train=80", "dataset.n_test=60", "sampler.batch_size=30", "figures=false"]
    words += ["optimizer.iterations=1", "evaluation.batches=0", "device.precision_check=off"]
    assert kfx("run", "-m", *words, "kernel.sigma=0.02,3", "seed=range(3)", "hydra.sweep.dir=s")[0] == 0
    code, out, _ = kfx("compare", "s", "--by", "kernel.sigma", "--csv", "t.csv", "--latex", "t.tex", "--se")
    assert code == 0
    import pandas as pd

    table = pd.read_csv("t.csv")
    values = {
        sigma: [e["mean"] for e in map(_accuracy, range(6)) if e["sigma"] == sigma] for sigma in table["kernel.sigma"]
    }
    best = values[table["kernel.sigma"][0]]
    for _, row in table.iterrows():
        own = values[row["kernel.sigma"]]
        assert row["accuracy_se"] == pytest.approx(np.std(own, ddof=1) / 3**0.5)
        p = 1.0 if own is best else ttest_rel(own, best, alternative="less").pvalue
        assert row["accuracy_p"] == pytest.approx(p)
    assert "mean ± se over seeds" in " ".join(out.split())
    assert out.count("*") == 1 + sum(table["accuracy_p"] >= 0.05)
    assert (in_folder / "t.tex").read_text().count("textbf") == sum(table["accuracy_p"] >= 0.05)


def _accuracy(job):
    run = load_run(f"s/{job}")
    rows = run.metrics["evaluation"]
    found = next(row for row in rows if row["metric"] == "accuracy" and row["kernel"] == "trained")
    return found | {"sigma": run.config.kernel.sigma}


def test_gradients_are_not_lost_in_silence():
    import torch

    x = torch.ones(3, 2, requires_grad=True)
    with pytest.raises(ValueError, match="would be lost"):
        RBF().gram(x)
    with torch.no_grad():
        assert RBF().gram(x).shape == (3, 3)


def test_a_signal_within_a_checksum_leaves_those_that_follow_right(tmp_path, monkeypatch):
    """A checkpoint after SIGTERM had a wrong checksum, and was refused as damaged."""
    path = tmp_path / "rows"
    path.write_bytes(b"first,")
    growing = GrowingFile(path)
    growing.digest(6)
    path.write_bytes(b"first,second")
    whole = type(path).open

    class Stream:
        def __init__(self):
            self.stream = whole(path, "rb")

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.stream.close()

        def seek(self, at):
            self.stream.seek(at)

        def tell(self):
            if self.stream.tell() == 12:  # a signal comes when all is read
                raise KeyboardInterrupt
            return self.stream.tell()

        def read(self, count):
            return self.stream.read(count)

    with monkeypatch.context() as patched:
        patched.setattr(type(path), "open", lambda self, *mode: Stream())
        with pytest.raises(KeyboardInterrupt):
            growing.digest(12)
    assert growing.digest(12) == hashlib.sha256(b"first,second").hexdigest()
