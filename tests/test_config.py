"""Every option of every group composes, agrees with its schema, and every bad config is one clear line."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from omegaconf import OmegaConf

from kfx import build, config
from kfx.config import GROUPS, config_folder, description, load, options
from kfx.kernels.base import Kernel
from kfx.schema import OPTIONS

EXPERIMENTS = options("experiment")
LEGAL_PAIRS = list(itertools.product(OPTIONS["kernel"], OPTIONS["optimizer"]))


@pytest.mark.parametrize(("group", "option"), [(g, o) for g in OPTIONS for o in options(g)])
def test_every_option_composes_and_states_its_whole_schema(group, option):
    node = getattr(load([f"{group}={option}"]), group)
    raw = OmegaConf.load(config_folder() / group / f"{option}.yaml")
    assert set(raw) == {item.name for item in dataclasses.fields(node)}, "a file says each key that it has"
    assert description(group, option), "a first line says what it is"


def test_every_schema_has_its_file_and_every_file_its_schema():
    for group in OPTIONS:
        assert set(options(group)) == set(OPTIONS[group])


@pytest.mark.parametrize("name", options("kernel"))
def test_files_of_kernels_state_the_bounds_of_their_class(name):
    node = load([f"kernel={name}"]).kernel
    kernel = build.kernel(node, (8, 8))
    assert isinstance(kernel, Kernel)
    assert {k: tuple(v) for k, v in node.bounds.items()} == dict(type(kernel).default_bounds)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_and_says_its_command(name):
    load([f"+experiment={name}"])
    text = (config_folder() / "experiment" / f"{name}.yaml").read_text()
    assert f"# kfx run +experiment={name}" in text
    if not name.startswith("smoke/") and not name.endswith("_smoke"):
        assert f"{name}_smoke" in EXPERIMENTS


@pytest.mark.parametrize("name", [e for e in EXPERIMENTS if not e.startswith("smoke/")])
def test_experiments_can_be_swept_over_optimizers(name):
    for optimizer in OPTIONS["optimizer"]:
        load([f"+experiment={name}", f"optimizer={optimizer}"])


@pytest.mark.parametrize(("kernel", "optimizer"), LEGAL_PAIRS)
def test_every_pair_has_its_smoke_config(kernel, optimizer):
    smoke = load([f"+experiment=smoke/{kernel}_{optimizer}"])
    assert (smoke.kernel.name, smoke.optimizer.name) == (kernel, optimizer)


BAD = [
    (["kernel=foo"], "kernel=foo: unknown option; it takes", "rbf"),
    (["kernel.sigam=2"], "kernel.sigam: unknown key", "did you mean sigma?"),
    (["+kernel.sigam=2"], "kernel.sigam: unknown key", "did you mean sigma?"),
    (["kernel.sigma=-1"], "kernel.sigma=-1", "expected a number > 0"),
    (["kernel.sigma=nan"], "kernel.sigma=nan", "expected a number > 0"),
    (["kernel.sigma=wide"], "kernel.sigma=wide", "expected a number > 0"),
    (["optimizer.iterations=ten"], "optimizer.iterations=ten", "expected a whole number >= 1"),
    (["optimizer.iterations=1.5"], "optimizer.iterations=1.5", "expected a whole number >= 1"),
    (["sampler.batch_size=5000"], "sampler.batch_size=5000", "take at most 1297"),
    (["sampler.sample_proportion=1.5"], "sampler.sample_proportion=1.5", "> 0 and < 1"),
    (["regularization.value=-1e-4"], "regularization.value=-0.0001", "expected a number >= 0"),
    (["regularization.scale=relative"], "regularization.scale=relative", "absolute, mean_diagonal, centered"),
    (["regularization=3"], "regularization=3", "value, scale"),
    (["evaluation.n_interpolation=[0]"], "evaluation.n_interpolation=[0]", "whole numbers >= 1"),
    (["evaluation.n_interpolation=[99999]"], "evaluation.n_interpolation: 99999", "1297 training points"),
    (["evaluation.rcond=0.1"], "evaluation.rcond=0.1", "null with solver=cholesky"),
    (["evaluation.balanced=true", "dataset=diabetes"], "evaluation.balanced=true", "no classes"),
    (["evaluation.regularization.value=[-1]"], "evaluation.regularization.value=[-1]", "a number >= 0"),
    (["+experiment=nope"], "experiment=nope: unknown option", "first_light/mnist_rbf"),
    (["kernel._target_=os.system"], "kernel._target_: unknown key", "sigma"),
    (["+kernel._target_=os.system"], "kernel._target_: unknown key", "sigma"),
    (["+_target_=os.system"], "_target_: unknown key", "dataset"),
    (["dataset.n_train=5000", "sampler.batch_size=9"], "dataset.n_train=5000", "at most 1297"),
    (["dataset=cifar10", "dataset.batches=[1,1]"], "dataset.batches=[1, 1]", "different numbers from 1 to 5"),
    (["dataset=gp_sample", "dataset.kernel.name=os"], "dataset.kernel.name=os", "rbf"),
    (["dataset=gp_sample", "dataset.kernel.sigma=-2"], "dataset.kernel.sigma=-2", "expected a number > 0"),
    (["seed=-1"], "seed=-1", "whole number >= 0"),
    (["seed=abc"], "seed=abc", "whole number >= 0"),
    (["foo=1"], "foo: unknown key", "kernel"),
    (["+foo=1"], "foo: unknown key", "kernel"),
    (["kernel.sigma=[1"], "cannot read", "key=value"),
    (["kernel.sigma=1,2"], "kernel.sigma=1,2", "kfx run -m"),
    (["kernel=3"], "kernel=3: unknown option", "rbf"),
    (["kernel=null"], "kernel=None: unknown option", "rbf"),
    (["~kernel"], "kernel.name=None", "rbf"),
    (["kernel.trainable=[gamma]"], "kernel=rbf", "no parameter 'gamma'; it has sigma"),
    (["kernel.bounds.sigma=[2,3]"], "kernel.sigma=1", "moves it within [2, 3]"),
    (["kernel.bounds.sigma=[3,2]"], "kernel.bounds", "0 <= low < high"),
    (["kernel=nngp", "kernel.bias_variance=0"], "kernel.bias_variance=0", "start inside"),
    (["dataset.preprocess=[whiten]"], "dataset.preprocess=['whiten']", "center, unit_norm, normalize"),
    (["device=cuda"], "device=cuda", "device=cpu"),
    (["dataset=mnist"], "train-images-idx3-ubyte.gz is missing", "KFX_DATA_DIR"),
    (["--foo"], "unrecognized arguments: --foo", "kfx run --help"),
    (["hydra.run.dir=/proc/no"], "hydra.run.dir=/proc/no", "choose another"),
    (["-m", "optimizer=sgd,adamm"], "optimizer=adamm", "did you mean adam?"),
    (["-m", "kernel.sigma=1,-1"], "kernel.sigma=-1", "expected a number > 0"),
]


@pytest.mark.parametrize(("words", "start", "accepted"), BAD, ids=[" ".join(words) for words, *_ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(kfx, in_folder, monkeypatch, words, start, accepted):
    monkeypatch.setattr("pooch.HTTPDownloader.__call__", _no_network)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, err = kfx("run", *words)
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert err.startswith("kfx: ")
    assert start in err
    assert accepted in err
    assert list(in_folder.rglob("*")) == [] or [p.name for p in in_folder.iterdir()] == ["cache"]


def _no_network(self, url, output_file, pooch, check_only=False):
    raise OSError("no network")


def test_bad_words_of_other_commands_are_one_line(kfx):
    for words in (["list", "foo"], ["data", "where", "foo"], ["gram", "kernel=foo"], ["gram", "--block", "0"]):
        code, _, err = kfx(*words)
        assert code == 2
        assert len(err.splitlines()) == 1


def test_groups_of_the_command_are_those_of_the_schema():
    assert set(GROUPS) == {*OPTIONS, "experiment"}
    assert config.options("kernel") == sorted(OPTIONS["kernel"])
