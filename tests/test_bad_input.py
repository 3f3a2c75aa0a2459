"""Every bad word or file is one line that names the key, what it got, and what it takes; exit code 2."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests.slow import one_in

BAD = [
    (["kernel=foo"], "kernel=foo: unknown option; it takes", "rbf"),
    (["kernel.sigam=2"], "kernel.sigam: unknown key", "did you mean sigma?"),
    (["dataset=table", "objective.form=batch"], "objective.form: unknown key", "form is a key of objective="),
    (["kernel.nu=1.5"], "kernel.nu: unknown key", "nu is a key of kernel=matern"),
    (["+kernel.sigam=2"], "kernel.sigam: unknown key", "did you mean sigma?"),
    (["kernel.sigma=-1"], "kernel.sigma=-1", "expected a number > 0"),
    (
        ["kernel=sum", "kernel.parts=[{name: rbg}]"],
        "kernel.parts[0]={'name': 'rbg'}",
        "expected a name, one of auto, rbf",
    ),
    (["kernel=sum", "kernel.parts=[{name: rbf,sigma: -1}]"], "kernel.parts[0].sigma=-1", "expected a number > 0"),
    (["kernel=sum", "kernel.parts=[{name: rbf,starts: 3}]"], "kernel.parts[0].starts=3", "set kernel.starts"),
    (["kernel=sum", "kernel.parts=[{name: rbf,initial: random}]"], "kernel.parts[0].initial=random", "kernel.initial"),
    (
        ["kernel=sum", "kernel.parts=[{name: rbf},{name: product,parts: [{name: rbf,starts: 3}]}]"],
        "kernel.parts[1].parts[0].starts=3",
        "set kernel.starts",
    ),
    (["kernel=sum", "kernel.parts=[{name: rbf,coefficient: 0}]"], "kernel.parts[0].coefficient=0", "a number > 0"),
    (["kernel=sum", "kernel.parts=[]"], "kernel.parts=[]", "expected a list of kernels"),
    (["kernel=rbf_network", "kernel.parts=[{name: linear}]"], "kernel.parts[0]", "one of rbf, rational_quadratic"),
    (["kernel=matern", "kernel.nu=2"], "kernel.nu=2", "expected 0.5, 1.5 or 2.5"),
    (
        ["kernel=linear", "kernel.initial=natural"],
        "kernel.initial=natural",
        "use rbf, matern, laplace or",
    ),
    (["objective=rho_prediction", "objective.form=other"], "objective.form=other", "one of relative_error"),
    (["evaluation=k_fold", "dataset=three_bumps"], "evaluation=k_fold: takes a table", "got three_bumps"),
    (["dataset.n_test=0"], "dataset.n_test=0: leaves no test point", "evaluation=k_fold"),
    (["evaluation.clip=[3,1]"], "evaluation.clip=[3.0, 1.0]", "[lowest, highest]"),
    (["kernel=cnngp", "kernel.engine=cuda"], "kernel.engine=cuda", "one of auto, fused, torch"),
    (["regularization.selection=trained"], "regularization.selection=trained: objective rho", "rho → 1 − p"),
    (
        ["regularization.selection=trained", "objective=loo", "optimizer.space=raw"],
        "regularization.selection=trained: moves log λ",
        "optimizer.space=log",
    ),
    (
        ["regularization.selection=trained", "objective=loo", "optimizer=finite_difference"],
        "regularization.selection=trained: optimizer=finite_difference moves no λ",
        "use adam, sgd or nesterov",
    ),
    (
        ["regularization.selection=trained", "objective=nll", "optimizer=bayesian", "optimizer.space=log"],
        "optimizer.bounds=[0.25, 200.0]",
        "optimizer.bounds=null",
    ),
    (
        ["regularization.selection=trained", "objective=nll", "optimizer=flow_euler"],
        "optimizer=flow_euler moves no λ",
        "use adam",
    ),
    (["kernel.bounds={sigma: [0,5]}"], "bounds of sigma must begin above 0", "got 0"),
    (["optimizer=flow_euler", "interpolation.kernel={name: rbf,starts: 2}"], "interpolation.kernel", "leave initial"),
    (["optimizer=flow_euler", "interpolation.kernel={name: cnngp}", "dataset=diabetes"], "kernel=cnngp", "images"),
    (["flow.step_rule=fast"], "flow.step_rule=fast", "one of relative, relative_to_largest, absolute, constant"),
    (
        ["optimizer=flow_euler", "follow.every=2", "evaluation.regularization.value=validation"],
        "evaluation.regularization.value=validation",
        "follow.every=0",
    ),
    (["regularization.points=6"], "regularization.points=6", "at least twice folds=5"),
    (["sampler.choice=stratified", "dataset=diabetes"], "sampler.choice=stratified: dataset diabetes", "uniform"),
    (["sampler.choice=nearest"], "sampler.choice=nearest", "one of uniform, stratified, neighbourhood"),
    (["optimizer=grid", "optimizer.parameter=alpha"], "optimizer.parameter=alpha: not a trainable parameter", "sigma"),
    (["optimizer=grid", "optimizer.bounds=[1,1e9]"], "optimizer.bounds=[1.0, 1000000000.0]", "kernel.bounds of sigma"),
    (["+kernel.initial_range={sigma: [1,2]}"], "kernel.initial_range={'sigma': [1, 2]}", "kernel.starts above 1"),
    (["kernel.sigma=nan"], "kernel.sigma=nan", "expected a number > 0"),
    (["kernel.sigma=wide"], "kernel.sigma=wide", "expected a number > 0"),
    (["optimizer.iterations=ten"], "optimizer.iterations=ten", "expected a whole number >= 1"),
    (["optimizer.iterations=1.5"], "optimizer.iterations=1.5", "expected a whole number >= 1"),
    (["dataset=digits", "sampler.batch_size=5000"], "sampler.batch_size=5000", "take at most 1297"),
    (["sampler.sample_proportion=1.5"], "sampler.sample_proportion=1.5", "> 0 and < 1"),
    (["regularization.value=-1e-4"], "regularization.value=-0.0001", "expected a number >= 0"),
    (["regularization.scale=relative"], "regularization.scale=relative", "absolute, mean_diagonal, centered"),
    (["regularization=3"], "regularization=3", "value, scale"),
    (["evaluation.n_interpolation=[0]"], "evaluation.n_interpolation=[0]", "whole numbers >= 1"),
    (["evaluation.n_interpolation=[99999]"], "evaluation.n_interpolation=99999", "342 training points"),
    (["evaluation.rcond=0.1"], "evaluation.rcond=0.1", "needs evaluation.solver=lstsq"),
    (["evaluation.balanced=true", "dataset=diabetes"], "evaluation.balanced=true", "no classes"),
    (["evaluation.regularization.value=[-1]"], "evaluation.regularization.value=[-1]", "a number >= 0"),
    (["+experiment=nope"], "experiment=nope: unknown option", "kfx list"),
    (["kernel._target_=os.system"], "kernel._target_: unknown key", "sigma"),
    (["+kernel._target_=os.system"], "kernel._target_: unknown key", "sigma"),
    (["+_target_=os.system"], "_target_: unknown key", "dataset"),
    (["dataset.n_train=5000", "sampler.batch_size=9"], "dataset.n_train=5000", "at most 342"),
    (["dataset=cifar10", "dataset.batches=[1,1]"], "dataset.batches=[1, 1]", "different numbers from 1 to 5"),
    (["dataset=gp_sample", "dataset.kernel.name=os"], "dataset.kernel.name=os", "rbf"),
    (["dataset=gp_sample", "+dataset.kernel.sigma=-2"], "dataset.kernel.sigma=-2", "expected a number > 0"),
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
    (["kernel.bounds.sigma=[3,2]"], "kernel.bounds", "low < high"),
    (["kernel=smooth_and_rough", "kernel.bounds.roughness=[2,3]"], "kernel.roughness=1", "start inside"),
    (
        ["kernel=smooth_and_rough", "optimizer=grid", "optimizer.parameter=stretch"],
        "optimizer.parameter=stretch",
        "a value for each feature",
    ),
    (["kernel=nngp", "kernel.bias_variance=0"], "kernel.bias_variance=0", "start inside"),
    (["dataset.preprocess=[whiten]"], "dataset.preprocess=['whiten']", "center, unit_norm, mean_norm, normalize"),
    (["device=cuda"], "device=cuda", "device=cpu"),
    (["dataset=mnist", "evaluation.n_interpolation=[100]"], "train-images-idx3-ubyte.gz is missing", "KFX_DATA_DIR"),
    (["kernel.sigma=${seed_}"], "kernel.sigma", "write the value"),
    (["kernel.sigma=???"], "kernel.sigma", "write the value"),
    (["optimizer.final=best", "optimizer.iterations=3"], "optimizer.final_window=10", "at most iterations=3"),
    (["+kernel.initial_range.sgima=[0.1,1]", "kernel.initial=random"], "kernel.initial_range.sgima", "sigma"),
    (["+kernel.initial_range.sigma=[0.1,1]"], "kernel.initial_range", "kernel.initial=random"),
    (["optimizer=bayesian", "kernel.bounds.sigma=[0.01,0.1]"], "optimizer.bounds", "widen one"),
    (["evaluation.n_interpolation=[50,50]"], "evaluation.n_interpolation=[50, 50]", "different"),
    (["dataset=swiss_roll", "dataset.t_range=[0,inf]"], "dataset.t_range", "two rising numbers"),
    (["device.threads=100000"], "device.threads=100000", ">= 1 and <= 1024"),
    (["hydra.foo=1"], "hydra.foo", "kfx run --cfg job"),
    (["--config-dir", "nowhere"], "--config-dir nowhere", "no folder"),
    (["--config-name", "x"], "--config-name", "one primary config"),
    (["-m", "--cfg", "job", "seed=0,1"], "--cfg, --info, --run: are of one config", "-m"),
    (["-m", "optimizer=glob(s*)"], "optimizer=glob(s*)", "a,b,c"),
    (["-m", "kernel.sigma=interval(0,1)"], "kernel.sigma=interval(0,1)", "a,b,c"),
    (["kernel=cnngp", "dataset=three_bumps"], "kernel=cnngp", "it takes images"),
    (
        ["-m", "dataset=digits", "kernel=nngp,cnngp", "kernel.weight_variance=2"],
        "kernel.weight_variance",
        "choice(value)",
    ),
    (["--foo"], "unrecognized arguments: --foo", "kfx run --help"),
    (["hydra.run.dir="], "hydra.run.dir=", "name one, or leave it out"),
    (["hydra.run.dir=' '"], "hydra.run.dir= ", "name one, or leave it out"),
    (["-m", "seed=0,1", "hydra.sweep.dir=''"], "hydra.sweep.dir=", "name one, or leave it out"),
    (["-m", "seed=choice(0)", "hydra.sweep.subdir=''"], "hydra.sweep.subdir=", "name one, or leave it out"),
    (["hydra.run.dir=/proc/no"], "hydra.run.dir=/proc/no", "choose another"),
    (["-m", "optimizer=sgd,adamm"], "optimizer=adamm", "did you mean adam?"),
    (["-m", "kernel.sigma=1,-1"], "kernel.sigma=-1", "expected a number > 0"),
]


@pytest.mark.parametrize(("words", "start", "accepted"), one_in(3, BAD), ids=[" ".join(words) for words, *_ in BAD])
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
    for words in (
        ["list", "foo"],
        ["data", "where", "foo"],
        ["data", "nope"],
        ["gram", "kernel=foo"],
        ["gram", "--block", "0"],
        ["gram", "--block", "x"],
        ["gram", "--output", "/proc/x"],
        ["precision", "--output", "/proc/x"],
        ["nonsense"],
        [],
    ):
        code, _, err = kfx(*words)
        assert code == 2
        assert len(err.splitlines()) == 1


def broken_mnist(folder):
    from tests.test_data import small_mnist, write_idx

    small_mnist(folder / "cache")
    write_idx(folder / "cache/mnist/train-images-idx3-ubyte.gz", np.zeros((30, 28, 28)), cut=-100)
    return ["dataset=mnist", "dataset.n_train=20", "dataset.n_test=10"], "it holds"


def hostile_cifar(folder):
    from tests.test_data import Hostile

    batches = folder / "cache/cifar10/cifar-10-batches-py"
    batches.mkdir(parents=True)
    for name in ("data_batch_1", "test_batch"):
        (batches / name).write_bytes(pickle.dumps({"data": Hostile()}))
    return ["dataset=cifar10", "dataset.batches=[1]", "dataset.n_train=20"], "asks for posix.system"


def too_few_points(folder):
    from tests.test_data import small_mnist

    small_mnist(folder / "cache")
    words = ["dataset=mnist", "dataset.n_test=10", "evaluation.n_interpolation=[25,100]", "sampler.batch_size=20"]
    return words, "has 30 training points"


@pytest.mark.parametrize("damage", [broken_mnist, hostile_cifar, too_few_points])
@pytest.mark.filterwarnings("ignore:.*are not the published files")
def test_bad_files_are_one_line_and_exit_code_2(kfx, in_folder, damage):
    words, message = damage(in_folder)
    code, out, err = kfx("run", "sampler.batch_size=5", *words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert message in err
    assert not (in_folder / "runs").exists()
