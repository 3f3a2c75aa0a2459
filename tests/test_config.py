"""Every option states its keys, every experiment composes, and what cannot go together is refused."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
from operator import attrgetter

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from kfx.config import nodes, registry
from kfx.config.catalogue import GROUPS, config_folder, description, options
from kfx.config.published import published
from kfx.config.registry import OPTIONS
from kfx.experiment.compose import composed, load, smoke_words, with_smoke_words, without_hydra
from kfx.experiment.config import check
from kfx.kernels import Kernel
from kfx.outcomes import ConfigError
from kfx.report.measured import applicable
from tests.smoke_runs import pairs, words_of

from .slow import slow_after
from .uci_files import write_uci

registry.load()
EXPERIMENTS = options("experiment")
ONE_OF_EACH = ["darcy/boston_flow", "khalid/centring_mnist", "milsom/mnist", "owhadi_yoo/greens_levels"]
FOUR_PAPERS = slow_after(4, ONE_OF_EACH + [name for name in EXPERIMENTS if name not in ONE_OF_EACH])
EVERY = [(group, name) for group, named in OPTIONS.items() for name in named]


@pytest.fixture(scope="module")
def usual():
    """The default config, composed once."""
    return without_hydra(composed([]))


def with_option(raw, group, name, **values):
    """A composed config with another option of a group."""
    changed = copy.deepcopy(raw)
    OmegaConf.set_struct(changed, False)
    changed[group] = {**OPTIONS[group][name].defaults(), **values}
    return changed


@pytest.mark.parametrize(("group", "name"), EVERY)
def test_every_option_builds_from_its_defaults_and_explains_its_keys(group, name, usual, tmp_path, monkeypatch):
    small = {"n_train": 200} if name in ("mnist", "fashion_mnist", "cifar10", "cifar100") else {}
    raw = with_option(usual, group, name, **small)
    if name in ("cnngp", "network_features", "cross_entropy", "conv_dkm", "elbo"):
        raw = with_option(raw, "dataset", "digits")
    if name == "table":
        (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{i / 3}\n" for i in range(130)))
        raw = with_option(usual, group, name, path=str(tmp_path / "t.csv"), target="y")
    if name == "arrays":
        np.savez(tmp_path / "t.npz", x=np.eye(130), y=np.arange(130) / 3)
        raw = with_option(usual, group, name, path=str(tmp_path / "t.npz"))
    if name == "greens_function":
        raw = with_option(raw, "dataset", "elliptic_1d")
    if name == "cross_entropy":
        raw = with_option(raw, "kernel", "network_features")
    if name in ("conv_dkm", "elbo"):
        raw = with_option(with_option(raw, "kernel", "conv_dkm"), "objective", "elbo")
    if name == "series":
        lines = "".join(f"{i},{np.sin(i)}\n" for i in range(130))
        (tmp_path / "s.csv").write_text("t,y\n" + lines)
        raw = with_option(usual, group, name, path=str(tmp_path / "s.csv"), time="t", lags=5)
    if name == "gilpin":
        monkeypatch.setenv("KFX_DATA_DIR", str(tmp_path))
        (tmp_path / "dysts").mkdir()
        series = {"Lorenz": {"dt": 0.1, "values": np.sin(np.arange(1200) / 9).tolist()}}
        with gzip.open(tmp_path / "dysts/test_univariate__pts_per_period_100__periods_12.json.gz", "wt") as stream:
            json.dump(series, stream)
        raw = with_option(usual, group, name, lags=5)
    if name in ("backtest", "hausdorff", "rollout"):
        raw = with_option(raw, "dataset", "dynamics", lags=4)
    if name in ("backtest", "hausdorff"):
        raw = with_option(raw, "optimizer", "grid")
    if name in ("uci", "uci_regression"):
        monkeypatch.setenv("KFX_DATA_DIR", str(tmp_path))
        write_uci(tmp_path)
    node = getattr(check(raw), group)
    assert node.name == {"objective": "rho", "kernel": "rbf"}.get(group, name) if name == "auto" else name
    assert description(group, name)
    for key, item in type(node).fields().items():
        assert item.metadata.get("meaning") or key == "regularization", f"{group}={name} says what {key} means"
    for item in registry.SECTIONS.values():
        assert all(each.metadata.get("meaning") for each in item.fields().values())


@pytest.mark.parametrize(("group", "name"), [("kernel", "matern"), ("optimizer", "hybrid"), ("evaluation", "k_fold")])
def test_options_compose_by_name(group, name):
    assert getattr(load([f"{group}={name}"]), group).name == name


@pytest.mark.parametrize("name", OPTIONS["kernel"])
def test_bounds_and_defaults_are_those_of_the_class(name, usual):
    option = OPTIONS["kernel"][name]
    suits = {"greens_function": "elliptic_1d", "emulator": "diabetes", "smooth_and_rough": "diabetes"}.get(
        name, "digits"
    )
    raw = with_option(with_option(usual, "kernel", name), "dataset", suits)
    raw = with_option(raw, "objective", "elbo") if option.is_deep else raw
    kernel = check(raw).kernel.build((8, 8))
    assert isinstance(kernel, Kernel)
    assert option.default_bounds() == (kernel.limits if "stretch" in kernel.names[-1] else type(kernel).default_bounds)
    own = {key: value for key, value in option.defaults().items() if key in option.default_bounds() and value}
    assert {key: kernel.parameters[key] for key in own} == own


@pytest.mark.slow
@pytest.mark.parametrize("group", ["optimizer", "sampler"])
def test_values_that_have_their_types_make_what_omegaconf_makes(group, monkeypatch):
    def made(schema, key, value):
        try:
            return repr(nodes.make("p", schema, {key: value}))
        except ConfigError as error:
            return str(error)

    cases = [
        (schema, key, value)
        for schema in OPTIONS[group].values()
        for key in schema.fields()
        for value in (None, True, 0, 3, 0.5, "auto", "1", [], [1], [0.5, 1], ["a"], [None])
    ]
    ours = [made(*case) for case in cases]
    monkeypatch.setattr(nodes, "_has_type", lambda value, hint: False)
    assert ours == [made(*case) for case in cases]


def text_of(experiment):
    return (config_folder() / "experiment" / f"{experiment}.yaml").read_text()


@pytest.mark.parametrize("name", FOUR_PAPERS)
def test_every_experiment_composes_and_says_its_command(name):
    config = load([f"+experiment={name}"])
    assert f"# kfx run +experiment={name}" in text_of(name)
    assert config.smoke


@pytest.mark.parametrize("name", FOUR_PAPERS)
def test_every_experiment_has_overrides_that_end_in_seconds_and_can_be_swept_over_optimizers(name):
    raw = without_hydra(composed([f"+experiment={name}"]))
    smoke = check(without_hydra(composed([f"+experiment={name}", *smoke_words(raw)])))
    assert not smoke.dataset.files(), "on embedded data"
    assert smoke.optimizer.iterations <= 100
    config, own = check(raw), set(yaml.safe_load(text_of(name)).get("optimizer") or {}) - {"learning_rate"}
    for _, optimizer in pairs([config.kernel.name]):
        if config.objective.has_head and not OPTIONS["optimizer"][optimizer].can_train_heads:
            continue
        if config.kernel_check and OPTIONS["optimizer"][optimizer].moves_points:
            continue
        if config.regularization.selection == "fixed":
            values = {key: raw.optimizer[key] for key in own if key in OPTIONS["optimizer"][optimizer].fields()}
            swept = with_option(raw, "optimizer", optimizer, **values)
            assert check(swept).optimizer.name == optimizer


@pytest.mark.slow
def test_legal_pairs_are_those_that_check():
    found = set(pairs())
    kernels, optimizers = OPTIONS["kernel"], OPTIONS["optimizer"]
    of_few = set(itertools.product(set(kernels) - {"greens_function", "network_features", "conv_dkm"}, optimizers))
    assert of_few <= found
    gradient_methods = {"none", "sgd", "nesterov", "adam", "amsgrad"}
    assert {o for k, o in found if k == "greens_function"} == gradient_methods | {"finite_difference", "grid", "lbfgs"}
    assert {o for k, o in found if k == "conv_dkm"} == gradient_methods
    assert {o for k, o in found if k == "network_features"} == gradient_methods | {
        *("flow_euler", "flow_rk45", "hybrid", "lbfgs"),
    }
    assert all(words_of(*pair) for pair in found)


def test_a_preset_of_ones_own_differs_from_an_option(in_folder):
    (in_folder / "own/kernel").mkdir(parents=True)
    (in_folder / "own/kernel/wide.yaml").write_text("# A wide Gaussian\ndefaults:\n  - rbf\nsigma: 7.5\n")
    found = load(["kernel=wide"], "own").kernel
    assert (found.name, found.sigma, found.bounds) == ("rbf", 7.5, {"sigma": [1e-4, 1e4]})
    assert description("kernel", "wide", "own") == "A wide Gaussian"
    (in_folder / "own/kernel/rbf.yaml").write_text("sigma: 2\n")
    with pytest.raises(ConfigError, match=r"own/kernel/rbf.yaml: kernel=rbf is an option already"):
        load(["kernel=wide"], "own")


def test_options_may_stand_anywhere(kfx, in_folder):
    (in_folder / "own/kernel").mkdir(parents=True)
    (in_folder / "own/kernel/wide.yaml").write_text("# A wide Gaussian\ndefaults:\n  - rbf\nsigma: 7.5\n")
    words = ["run", "optimizer.iterations=1", "kernel=wide", "--config-dir", "own", "figures=false", "seed=1"]
    assert kfx(*words, "device.precision_check=off", "hydra.run.dir=r")[0] == 0
    code, out, _ = kfx("run", "+experiment=darcy/boston_flow", "--smoke", "--cfg", "job")
    assert code == 0
    assert "name: diabetes" in out
    assert kfx("list", "kernel", "--config-dir", "own", "wide")[1].startswith("# A wide Gaussian")


def test_a_list_of_overrides_cannot_reach_hydra(kfx, in_folder):
    for word in ("hydra.searchpath=[pkg://os]", "hydra.run.dir=x", "seed=1,2"):
        code, _, err = kfx("run", "--smoke", f"smoke=['{word}']")
        assert code == 2
        assert len(err.splitlines()) == 1
    code, _, err = kfx("run", "--smoke", "smoke=abc")
    assert (code, "smoke=abc: expected a list of overrides" in err) == (2, True)


def test_null_is_not_auto():
    assert [load([f"sampler.batch_size={size}"]).sampler.batch_size for size in ("null", "auto")] == [None, 100]


def test_published_numbers_are_read():
    found = load(["+experiment=khalid/three_bumps_rbf"]).published
    assert [(each.metric, each.kernel, each.value) for each in found] == [("mse", "initial", 6.865)]
    with pytest.raises(ConfigError, match=r"published\[0\].statistic=median: expected one of mean"):
        load(["published=[{metric: mse, value: 1, source: a, statistic: median}]"])


def listed(text):
    return published("published", yaml.safe_load(text))


def test_an_entry_may_be_a_table_of_published_numbers():
    found = listed("""
    - source: A
      metric: [mse, mae]
      statistic: [mean, sd]
      overrides: [seed=1]
      rows:
        - {source: one, value: [[1, 2], [3, 4]]}
        - {source: two, value: null, kernel: initial, overrides: [seed=2, report=true]}
    """)
    heads = list(itertools.product(("mse", "mae"), ("mean", "sd")))
    assert [(each.metric, each.statistic) for each in found] == [*heads, *heads]
    assert [each.value for each in found] == [1, 2, 3, 4, None, None, None, None]
    assert {(each.source, each.kernel, *each.overrides) for each in found} == {
        ("A, one", "trained", "seed=1"),
        ("A, two", "initial", "seed=1", "seed=2", "report=true"),
    }


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{metric: [mse, mae], value: [1]}", r"published\[0\].value=\[1\]: expected 2 values, one for each metric"),
        ("{metric: mse, rows: 3}", r"published\[0\].rows=3: expected a list of"),
        ("{metric: mse, rows: [{value: 1}, {value: a}]}", r"published\[0\].rows\[1\].value=a: expected a number"),
        ("{metric: mse, rows: [2]}", r"published\[0\].rows\[0\]"),
        ("{metric: mse, overrides: a, rows: [{value: 1}]}", r"published\[0\].rows\[0\].overrides=a: expected"),
    ],
)
def test_a_table_of_published_numbers_is_refused_by_its_row(entry, said):
    with pytest.raises(ConfigError, match=said):
        listed(f"[{entry}]")


def test_interpolations_that_name_keys(kfx):
    found = load(["kernel.sigma=${seed}", "seed=3", "optimizer.iterations=${dataset.n_test}", "dataset.n_test=70"])
    assert (found.kernel.sigma, found.optimizer.iterations) == (3.0, 70)


@pytest.mark.parametrize(("group", "name"), [(group, name) for group in OPTIONS for name in OPTIONS[group]])
def test_every_rule_can_be_explained(group, name):
    config = load()
    option = nodes.make_option(group, group, OPTIONS[group][name].defaults())
    for rule in [rule for cls in type(option).__mro__ for rule in vars(cls).get("rules", ())]:
        if key := rule.key.partition("=")[0]:
            attrgetter(key)(option)
        said = rule.why.format(own=option, config=config)
        assert said
        assert not set("{}") & set(said)


def test_groups_of_the_command_are_those_of_the_registry():
    assert set(GROUPS) == {*OPTIONS, "experiment"}


def test_a_table_of_keys_for_every_option(kfx):
    for group, name in [("kernel", "cnngp"), ("dataset", "gp_sample"), ("evaluation", "k_fold")]:
        code, out, _ = kfx("list", group, name)
        assert code == 0
        assert all(key in out for key in OPTIONS[group][name].fields() if key != "regularization")
        assert "one of" in out
    shown = kfx("list", "optimizer", "adam")[1]
    assert shown.index("beta1") < shown.index("learning_rate") < shown.index("iterations"), "its own keys come first"
    code, out, _ = kfx("list", "config", "flow")
    assert code == 0
    assert "record_layers" in out


def test_an_objective_is_known_by_its_printed_symbol(kfx):
    assert load(["objective=e2"]) == load(["objective=interpolation_error"])
    assert composed(["objective=e2"]).objective.name == "interpolation_error"
    shown = {line.split()[0]: line for line in kfx("list", "objective")[1].splitlines()[1:]}
    symbols = {
        "rho": " ρ: ",
        "interpolation_error": " e₂: ",
        "nll": " −log p(Y): ",
        "rho_prediction": " prediction ρ: ",
    }
    assert all(symbol in shown[name] for name, symbol in symbols.items())
    assert "interpolation_error" in shown["e2"]


def test_help_shows_the_keys_of_what_was_chosen(kfx):
    code, out, _ = kfx("run", "kernel=cnngp", "dataset=digits", "kernel.weight_variance=2.5", "--help")
    assert code == 0
    assert "weight_variance" in out
    assert "2.5" in out
    assert "one of simple, convnet" in out


@pytest.mark.slow
def test_published_numbers_follow_the_overrides_of_a_run():
    config = load(["+experiment=darcy/boston_flow"])

    def shown(*typed):
        return [each.value for each in applicable(config, typed) if each.metric == "mse"]

    assert shown() == [47.83]
    assert shown("optimizer=hybrid", "seed=3") == [48.187]
    assert shown("sampler.batch_size=null", "optimizer=hybrid", "optimizer.iterations=500") == [40.083]
    assert not load(["+experiment=darcy/boston_flow", "published=null"]).published
    assert not check(without_hydra(composed(with_smoke_words(["+experiment=darcy/boston_flow"])))).published
    points = "evaluation.n_interpolation=[10,60,600,6000,12000]"
    of_cross_entropy = ["+experiment=owhadi_yoo/mnist_network", "objective=cross_entropy", points]
    for objective, value in (("rho", 0.0064), ("interpolation_error", 0.00596)):
        of = load(["+experiment=owhadi_yoo/mnist_network", f"objective={objective}"])
        assert value in [each.value for each in applicable(of, [])], "what was chosen need not have been typed"
    assert [each.metric for each in applicable(load(of_cross_entropy), [points])] == ["head_accuracy"]
