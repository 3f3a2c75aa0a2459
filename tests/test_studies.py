"""Studies: runs that answer a question together, their table and their picture."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf

from kfx import load_run
from kfx.config import catalogue, registry
from kfx.jobs import study
from kfx.kernels import CNNGP
from kfx.kernels.cnngp.architectures import architecture
from kfx.outcomes import ConfigError
from kfx.plots.study import landscape, over_iterations, scaling, slope
from kfx.report.measured import SHARES

WORDS = ("kernel=rbf", "dataset.n_train=60", "dataset.n_test=20", "sampler.batch_size=30", "optimizer.iterations=6")


pytestmark = pytest.mark.usefixtures("own_registry")


@pytest.mark.parametrize("name", study.names())
def test_every_study_composes_and_says_what_it_is(name):
    read = study.read(name)
    assert len(read.runs) > 1
    assert all(known.source for known in read.published)
    assert read.columns
    assert "20" in catalogue.description("study", name)  # the paper's year


def test_a_study_has_a_table_and_a_picture(kfx, in_folder):
    code, out, err = kfx("study", "momentum", "--smoke", "--jobs", "2", "--set", "seed=3")
    assert code == 0, err
    table = pd.read_csv(in_folder / "runs" / "study" / "momentum,seed=3,smoke" / "table.csv")
    assert table["run"].to_list() == ["SGD", "Nesterov momentum"]
    assert table["sigma"].between(0.1, 10).all()
    assert (in_folder / "runs" / "study" / "momentum,seed=3,smoke" / "picture.png").stat().st_size > 10_000
    run = load_run(in_folder / "runs" / "study" / "momentum,seed=3,smoke" / "SGD" / "run")
    assert run.config.seed == 3
    assert "Nesterov momentum" in out
    again = kfx("study", "momentum", "--smoke", "--set", "seed=3")
    assert again[0] == 0  # nothing is run twice
    assert load_run(run.directory).metrics == run.metrics


@pytest.mark.parametrize("name", ["sample_proportion", "three_variants", "memory"])
def test_each_kind_of_picture_is_drawn(kfx, in_folder, name):
    code, _, err = kfx("study", name, "--smoke", "--jobs", "2")
    if code != 0 and "mnist" in err:
        pytest.skip("MNIST is not here")
    assert code == 0, err
    assert (in_folder / "runs" / "study" / f"{name},smoke" / "picture.png").is_file()


@pytest.mark.parametrize("relu", ["operations", "one_node"])
def test_the_kept_graph_is_the_kernel_that_it_is_compared_with(relu):
    study.read("memory")
    common = {"trainable": None, "bounds": {}}
    plain = registry.OPTIONS["kernel"]["kept_graph"](relu=relu).make((28, 28), **common)
    kernel = CNNGP(architecture("simple", (28, 28)), 1.0, 1.0)
    x = torch.as_tensor(np.random.default_rng(0).uniform(size=(6, 1, 28, 28)))
    cotangent = torch.as_tensor(np.random.default_rng(1).normal(size=(6, 6)))
    cotangent = cotangent + cotangent.T
    gram, pull = plain.pullback(x)
    torch.testing.assert_close(gram, kernel.gram(x), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(plain.gram(x), gram)
    assert pull(cotangent)[0] == pytest.approx(kernel.pullback(x)[1](cotangent)[0], rel=1e-6)


def test_what_a_paper_prints_stands_in_the_table(kfx, in_folder):
    assert kfx("run", *WORDS, "hydra.run.dir=r", "figures=false")[0] == 0
    known = study.Known("a", "mse", 2.5, "a paper")
    asked = study.Study(runs={"a": [], "b": []}, columns=["mse"], published=[known])
    there = {"a": in_folder / "r", "b": in_folder / "r"}
    table = study.table(asked, there)
    assert list(table) == ["run", "mse", "mse, published"]
    assert table["mse, published"].to_list()[0] == 2.5
    assert np.isnan(table["mse, published"].to_list()[1])
    assert list(study.table(asked, there, is_as_published=False)) == ["run", "mse"]


def test_curves_are_named_before_the_last_comma():
    runs = {f"{kind}, N = {n}": SimpleNamespace(config=OmegaConf.create({"n": n})) for kind in "ab" for n in (1, 2, 4)}
    values = [1.0, 2, 4, 1, 4, 16]
    printed = [np.nan] * 5 + [20.0]
    frame = pd.DataFrame({"run": list(runs), "MB": values, "MB, published": printed})
    (axes,) = scaling(runs, "n", ["MB"], frame).axes
    assert [line.get_label() for line in axes.lines] == ["a: exponent 1.00", "b: exponent 2.00", "published"]
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), [1, 4, 16])


def test_a_picture_of_what_no_run_records_is_one_line(kfx, in_folder):
    assert kfx("run", *WORDS, "hydra.run.dir=r", "figures=false")[0] == 0
    for draw in (landscape, over_iterations):
        with pytest.raises(ConfigError, match="x=sigmaa: a records no such parameter"):
            draw({"a": load_run("r")}, "sigmaa", [], pd.DataFrame())


def test_studies_are_listed(kfx):
    code, out, _ = kfx("study")
    assert code == 0
    assert len(out.splitlines()) == len(study.names())


def test_bad_words_are_one_line(kfx, in_folder):
    for words, said in (
        (("momentun",), "momentun: unknown study; it takes altered_rho"),
        (("momentum", "--jobs", "0"), "--jobs 0: expected a whole number >= 1"),
        (("momentum", "--set", "kernel.sigam=2"), "kernel.sigam: unknown key"),
    ):
        code, _, err = kfx("study", *words)
        assert code == 2
        assert said in err
        assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs: {a: [kernel=nothing]}\ncolumns: [mse]", "kernel=nothing: unknown option"),
        ("runs: [1, 2]\ncolumns: [mse]", "expected a name and a list of words"),
        ("", "expected runs and columns"),
        ("runs: {a b: [], a_b: []}\ncolumns: [mse]", "a b and a_b: would share a folder"),
        ("runs: {a: [hydra.run.dir=x]}\ncolumns: [mse]", "hydra.run.dir=x: where a run goes"),
        ("runs: {a: [kernel=rbf]}\ncolumns: [mse]\npicture: landscape", "picture=landscape: needs x"),
        ("runs: {a: [kernel=rbf]}\ncolumns: [mse]\npicture: scaling\nx: no.thing", "x=no.thing: is no key with a"),
        ("runs: {a: [kernel=rbf]}\ncolumns: [mse]\npicture: film", "picture=film"),
        ("runs: {a: [kernel=rbf]}\ncolumns: [mse]\ncolour: red", "colour: unknown key"),
        ("runs: {a: [", "study.yaml"),
        ("runs: {a: [kernel=rbf]}\ncolumns: [mse]\nplugins: [none.py]", r"none.py: expected a Python file"),
        (
            "runs: {a: [kernel=rbf]}\ncolumns: [mse]\npublished: [{run: a, column: mae, value: 1, source: s}]",
            "a, mae: is no run and col",
        ),
        (
            "runs: {a: [kernel=rbf]}\ncolumns: [mse]\npublished: [{run: a, value: big}]",
            r"published\[0\].value=big: expected a number",
        ),
        ("runs: {a: [kernel=rbf]}\ncolumns: [mse]\npublished: 3", "published=3: expected a list of"),
    ],
)
def test_a_file_that_is_not_understood_is_one_line(tmp_path, monkeypatch, text, said):
    (tmp_path / "study.yaml").write_text(text)
    monkeypatch.setattr(study, "names", lambda: ["study"])
    monkeypatch.setattr(catalogue, "file_of", lambda group, name: tmp_path / "study.yaml")
    with pytest.raises(ConfigError, match=said):
        study.jobs(study.read("study"), tmp_path)


def test_the_trace_says_where_the_time_went(kfx, in_folder):
    assert kfx("run", *WORDS, "optimizer=finite_difference", "hydra.run.dir=r", "figures=false")[0] == 0
    trace = load_run("r").trace
    parts = trace[[f"diagnostic.{name}" for name in SHARES.values()]]
    assert (parts.iloc[:, 0] > 0).all()
    assert parts.to_numpy().sum() <= trace["seconds"].iloc[-1]


def test_exponents_are_of_the_larger_half():
    x = np.array([100.0, 200, 400, 800, 1600])
    assert slope(x, 1e-3 * np.maximum(x / 400, 1) ** 3) == pytest.approx(3)
    assert np.isnan(slope(x, np.full(5, np.nan)))
