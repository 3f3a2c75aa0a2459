"""Published numbers beside measured ones: tables, verdicts, the page, and what `kfx reproduce` runs."""

import copy
import csv
import json
import re
import time
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import yaml
from omegaconf import OmegaConf

from kfx.config.nodes import make
from kfx.config.published import Printed, Quantity, read_published
from kfx.experiment.compose import composed, of_job, without_hydra
from kfx.experiment.config import settled
from kfx.experiment.sweeps import parse
from kfx.outcomes import ConfigError, RecordError
from kfx.papers import claims, logged, numbers, pages, tables, words
from kfx.papers.claims import Standing
from kfx.papers.missing import Missing
from kfx.papers.numbers import FOLDER, gather, of_command, read_notes
from kfx.papers.studies import read as read_study
from kfx.papers.tables import Command
from kfx.papers.verdict import Verdict, half_a_digit, verdict
from kfx.report.measured import measured_as
from tests.page_parts import assert_same_page

ROOT = Path(__file__).parent.parent
RBF = "khalid/three_bumps_rbf"


@pytest.fixture(scope="module")
def entries():
    """What is committed."""
    return gather(ROOT / FOLDER, is_checked=False)


@pytest.fixture(scope="module")
def tested():
    """The claims, tested on what is committed."""
    return claims.tested(claims.read(ROOT / FOLDER), claims.measurements(ROOT / FOLDER))


def test_the_page_is_what_the_tables_give(entries, tested):
    assert_same_page((ROOT / "REPRODUCTION.md").read_text(), pages.markdown(entries, tested, read_notes(ROOT / FOLDER)))


def test_the_page_has_every_experiment_and_claim(entries, tested):
    page = pages.markdown(entries, tested, read_notes(ROOT / FOLDER))
    assert all(entry.experiment in page for entry in entries)
    assert all(f"| {each.claim.claim} <details>" in page for each in tested)


def changed(part, config_of=of_job):
    """What its command composes to otherwise than when its table was measured."""
    raw = config_of(part.command.words)
    return [f"{part.command}: {each}" for each in part.table.changed(raw)] if part.table else []


@cache
def chosen(*words):
    """What Hydra composes from the words, without the printed numbers, which are many."""
    return without_hydra(composed([*words, "published=null"]))


def by_values(words):
    """The config of a run with these words: Hydra composes its options once for all commands that choose them, and
    single values are set as Hydra sets them."""
    values = [each for each in parse(words) if "." in each.key_or_group and not (each.is_add() or each.is_delete())]
    raw = copy.deepcopy(chosen(*(word for word in words if word not in {each.input_line for each in values})))
    for each in values:
        OmegaConf.update(raw, each.key_or_group, each.value())
    return settled(raw)[0]


def said(part):
    """The keys of a command's overrides, and the options that its table was measured with."""
    nodes = part.table.settings.items() if part.table else ()
    of_table = {(group, node["name"]) for group, node in nodes if isinstance(node, dict) and "name" in node}
    return of_table | {word.partition("=")[0] for word in part.command.overrides}


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["khalid", "darcy", "owhadi_yoo", "milsom"])
def test_commands_of_printed_numbers_compose_to_what_was_measured(entries, paper):
    """So many that each key of an override and each option is among them."""
    seen = set()
    for part in [part for entry in entries if entry.experiment.startswith(paper) for part in entry.parts]:
        if not said(part) <= seen:
            seen |= said(part)
            assert not changed(part)
    assert seen


@pytest.mark.slow
@pytest.mark.parametrize("paper", ["darcy", "khalid", "owhadi_yoo", "milsom/cifar", "milsom/mnist"])
def test_every_command_of_a_printed_number_composes_to_what_was_measured(entries, paper):
    parts = [part for entry in entries if entry.experiment.startswith(paper) for part in entry.parts]
    assert not [line for part in parts for line in changed(part, by_values)]
    assert len(parts) > 8


@pytest.mark.parametrize(
    ("published", "measured", "expected"),
    [
        ("1", [1.0], Verdict.REPRODUCED),
        ("1", [1.0, 1.0], Verdict.REPRODUCED),
        ("1", [1.0, 0.0, 1.0], Verdict.NOISY),
        ("0", [1.0, 0.0, 1.0], Verdict.NOISY),
        ("0", [1.0, 1.0, 1.0], Verdict.DIFFERS),
    ],
)
def test_a_yes_or_no_is_reproduced_where_all_seeds_agree(published, measured, expected):
    assert verdict(published, measured, is_yes_or_no=True) == expected


def test_digits_are_kept_as_they_are_printed():
    printed = read_published("darcy/boston_flow")[0]
    assert printed.text == "47.830"
    assert printed.value == 47.83
    assert half_a_digit("47.830") == pytest.approx(0.0005)
    assert half_a_digit("12") == 0.5
    assert half_a_digit("1e-4") == pytest.approx(0.5e-4)


def test_an_experiment_that_builds_on_another_has_its_numbers():
    every_seed = "khalid/three_bumps_prediction_every_seed"
    assert read_published(every_seed) == read_published("khalid/three_bumps_prediction")


@pytest.mark.parametrize(
    ("published", "measured", "deviation", "expected"),
    [
        ("1.00", [1.004], None, Verdict.REPRODUCED),  # to its digits
        ("1.00", [1.006], None, Verdict.CLOSE),
        ("6.865", [6.870], None, Verdict.CLOSE),
        ("1.00", [1.03], None, Verdict.DIFFERS),
        ("1.0", [0.9, 1.1, 1.25], None, Verdict.REPRODUCED),  # within two errors of three seeds, and within 10 %
        ("1.0", [0.9, 1.1, 1.6], None, Verdict.NOISY),  # within two errors, and 20 % away
        ("2.0", [0.9, 1.0, 1.2], None, Verdict.DIFFERS),
        ("1.0", [1.2, 1.3], None, Verdict.DIFFERS),  # two seeds have no error
        ("1.0", [1.08], 0.06, Verdict.REPRODUCED),  # the paper's deviation
        ("1.0", [1.15], 0.06, Verdict.NOISY),
        ("1.0", [1.18], 0.06, Verdict.DIFFERS),
        ("0.64", [0.7], 0.034, Verdict.REPRODUCED),
        ("1.0", [], None, Verdict.NOT_RUN),
        (None, [1.0], None, Verdict.NONE),
    ],
)
def test_verdicts_follow_the_rule_of_the_page(published, measured, deviation, expected):
    assert verdict(published, measured, deviation) is expected


def test_a_change_in_the_published_direction_is_told_from_others():
    assert verdict("5.0", [7.0], before=(10.0, [9.0])) is Verdict.DIRECTION
    assert verdict("5.0", [9.5], before=(10.0, [9.0])) is Verdict.DIFFERS
    assert verdict("5.0", [7.0], before=(10.0, [])) is Verdict.DIFFERS


def test_one_reading_judges_all_numbers_of_a_command(entries):
    judged = [(entry, part) for entry in entries for part in entry.parts if part.judged_by]
    assert judged
    for entry, part in judged:
        (reading,) = (each for each in entry.parts if each.command == part.judged_by)
        by_place = {(item.printed.place, item.printed.source): item.verdict for item in reading.items}
        found = [item for item in part.items if item.reading is not None]
        assert {item.reading.command for item in found} == {part.judged_by}
        assert all(item.verdict is by_place[item.printed.place, item.printed.source] for item in found)
        own = numbers._part(part.command, read_published(entry.experiment), part.table, False, False)
        assert numbers._agreement(part.compared) > numbers._agreement(own.compared)
        assert part.agreeing >= own.agreeing


def test_accuracies_are_compared_as_errors():
    assert verdict("0.9935", [0.9881]) is Verdict.CLOSE
    assert verdict("0.9935", [0.9881], is_accuracy=True) is Verdict.DIFFERS
    assert verdict("0.9935", [0.99354], is_accuracy=True) is Verdict.REPRODUCED
    assert verdict("0.9", [0.8], is_accuracy=True, before=(0.5, [0.4])) is Verdict.DIRECTION


def test_a_command_has_the_numbers_of_the_most_overrides_that_it_holds():
    printed = read_published("darcy/table_5_1_boston")
    own = of_command(printed, Command.of("darcy/table_5_1_boston", ["seed=3", "sampler=dynamic", "figures=false"]))
    found = {each.place[:2]: each.text for each in own}
    assert found["mse", "trained"] == "30.738"
    assert found["mse", "initial"] == "34.363"


# ---- claims


def table_of(command, **measured):
    """A table with a row for each seed and metric."""
    rows = [
        {
            "seed": str(seed),
            "metric": metric,
            "kernel": "trained",
            "n_interpolation": "",
            "statistic": "mean",
            "window": "",
            "measured": str(value),
        }
        for metric, values in measured.items()
        for seed, value in enumerate(values)
    ]
    return tables.Table(command, {}, tuple(rows))


def standing(conditions, unprinted="", **measured):
    stated = {"claim": "c", "source": "Paper 1999, §1", "unprinted": unprinted, "conditions": conditions}
    claim = make("claim", claims.Claim, stated)
    command = Command("e/x", ("a=1",))
    (found,) = claims.tested([claim], claims.Measurements({command: table_of(command, **measured)}, STUDIES))
    return found


STUDIES = {"s": {"one": {"sigma": 2.0}, "other": {"sigma": 1.0}}}


def condition(**more):
    return {"run": "e/x a=1", "metric": "mse", **more}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([condition(below=3)], Standing.HOLDS),
        ([condition(below=2.5)], Standing.UNDECIDED),  # 3 of 5
        ([condition(above=5)], Standing.FAILS),
        ([condition(above=5), condition(below=9)], Standing.PARTLY),
        ([condition(below={"metric": "mae"})], Standing.HOLDS),
        ([condition(below={"metric": "mae", "times": 0.1})], Standing.FAILS),
        ([condition(metric="error", near=0.25)], Standing.HOLDS),  # by the accuracy that the table has
        ([condition(near=2, metric="mae"), condition(not_near=20)], Standing.PARTLY),
        ([condition(run="e/other", below=3)], Standing.NOT_RUN),
        ([{"study": "s", "run": "one", "metric": "sigma", "above": {"run": "other"}}], Standing.HOLDS),
        ([{"study": "s", "run": "none", "metric": "sigma", "above": 1}], Standing.NOT_RUN),
        ([condition(run="e/other", below=3), condition(below=3)], Standing.HOLDS),
        ([condition(below=2.5), condition(above=5)], Standing.UNDECIDED),  # one open, one failed
        ([condition(metric="broken", not_near=2)], Standing.FAILS),
        ([condition(below={"run": "e/other"})], Standing.NOT_RUN),
        ([condition(above=5), condition(below=9, control=True)], Standing.FAILS),  # a control is no support
        ([condition(below=9), condition(above=5, control=True)], Standing.PARTLY),
        ([condition(below=9), condition(below=9, control=True)], Standing.HOLDS),
        ([condition(below=9, control=True)], Standing.NOT_RUN),
        ([condition(metric="alone", above=5)], Standing.UNDECIDED),  # a single seed does not refute
        ([condition(metric="alone", below=5)], Standing.HOLDS),
        ([condition(below=1.5, can=True)], Standing.HOLDS),  # 2 of 5 seeds show that it can be
        ([condition(above=5, can=True)], Standing.FAILS),
    ],
)
def test_a_claim_stands_as_its_conditions_do(conditions, expected):
    values = {
        "mse": [1, 1, 2.2, 2.7, 2.8],
        "mae": [4, 4, 4, 4, 4],
        "accuracy": [0.74, 0.75, 0.76, 0.75, 0.75],
        "broken": [float("nan"), float("nan")],
        "alone": [1],
    }
    assert standing(conditions, **values).standing is expected


def test_what_a_paper_does_not_print_may_be_why_a_claim_fails():
    assert standing([condition(above=5)], "the step", mse=[1, 2]).standing is Standing.UNDECIDED
    holds = standing([condition(below=5)], "the step", mse=[1, 2])
    assert holds.standing is Standing.HOLDS
    assert words.evidence(holds)[-1] == "Not printed: the step."


def test_the_evidence_says_what_was_compared():
    found = standing(
        [condition(below={"metric": "mae"}), condition(metric="yes", equals=1)], mse=[1, 2], mae=[3, 3], yes=[1, 0]
    )
    (line,) = words.evidence(found)
    assert "mean squared error = 1.5 ± 0.71, below 3 (mean absolute error): in 2 of 2 seeds" in line
    assert "yes: in 1 of 2 seeds" in line
    (line,) = words.evidence(standing([condition(below={"metric": "mae", "times": 0.5})], mse=[1], mae=[3]))
    assert line.endswith("mean squared error = 1, below 0.5 × 3 (mean absolute error): yes")
    assert words.standing(standing([condition(below=9)], mse=[1])) == "holds, one seed"
    some = standing([condition(below=9), condition(metric="mae", equals=0, control=True)], mse=[1, 2])
    assert words.standing(some) == "holds, 1 of 2 conditions measured"
    assert words.evidence(some)[0].endswith("; control: mean absolute error not measured")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"metric": "mse", "below": 1}, "expected run, metric and one of equals"),
        ({"run": "e/x", "metric": "mse"}, "expected run, metric and one of equals"),
        ({"run": "e/x", "metric": "mse", "below": 1, "above": 2}, "expected run, metric and one of equals"),
        ({"run": "e/x", "metric": "mse", "below": "much"}, "below=much: expected a finite number"),
        ({"run": "e/x", "metric": "mse", "belov": 1}, "belov: unknown key"),
        ({"run": "e/x", "metric": "mse", "below": {"metrik": "mae"}}, r"conditions\[0\].below.metrik: unknown key"),
        ({"run": " ", "metric": "mse", "below": 1}, "expected run, metric and one of equals"),
        ({"run": "e/x", "metric": "mse", "below": {"run": ""}}, r"below.run: expected an experiment"),
        ({"run": "e/x", "metric": "mse", "equals": {"kernel": "initial"}}, "equals=.*expected a finite number"),
        ({"run": "e/x", "metric": "mse", "near": float("nan")}, "near=nan: expected a finite number"),
        (None, "conditions=None: expected a list"),
    ],
)
def test_a_condition_that_is_not_understood_is_one_line(tmp_path, wrong, said):
    conditions = wrong if wrong is None else [wrong]
    (tmp_path / claims.FILE).write_text(yaml.safe_dump([{"claim": "c", "source": "s", "conditions": conditions}]))
    with pytest.raises(ConfigError, match=said):
        claims.read(tmp_path)


def test_gaps_in_the_table_of_a_study_leave_the_other_cells(tmp_path):
    folder = tmp_path / claims.STUDIES
    folder.mkdir()
    (folder / "s.csv").write_text("run,sigma,mse,date\none,1.0,,2026-01-01\ntwo,,0.5,2026-01-01\n")
    assert claims.measurements(tmp_path).studies == {"s": {"one": {"sigma": 1.0}, "two": {"mse": 0.5}}}
    (folder / "s.csv").write_text("run,mse\n1e-6,0.5\n0.10,failed\n1,2.5\n")  # names stay as written
    assert claims.measurements(tmp_path).studies == {"s": {"1e-6": {"mse": 0.5}, "0.10": {}, "1": {"mse": 2.5}}}
    (folder / "s.csv").write_text("sigma\n1.0\n")
    with pytest.raises(RecordError, match="record the study again"):
        claims.measurements(tmp_path)


def test_conditions_of_claims_name_experiments_and_metrics_that_are_there(entries, tested, own_registry):
    there = {entry.experiment for entry in entries}
    for outcome in [outcome for each in tested for outcome in each.outcomes]:
        condition = outcome.condition
        if condition.study:
            study = read_study(condition.study)
            assert condition.run in study.runs
            assert condition.metric in study.columns
            continue
        assert condition.command.experiment in there, condition
        published = read_published(condition.command.experiment)
        assert {condition.metric, claims.COMPLEMENTS.get(condition.metric)} & {p.metric for p in published}


@pytest.mark.slow
def test_commands_of_claims_compose(tested):
    conditions = [outcome.condition for each in tested for outcome in each.outcomes if not outcome.condition.study]
    for command in dict.fromkeys(tuple(condition.command.words) for condition in conditions):
        assert composed(command)


# ---- runs


def made(kfx, *words, name="r"):
    code, _, err = kfx("run", f"+experiment={RBF}", f"hydra.run.dir={name}", *words)
    assert code == 0, err


def row_of(page, number):
    return next(line for line in page.read_text().splitlines() if number in line)


@pytest.mark.slow
def test_runs_become_rows_of_a_table_and_of_the_page_where_those_of_other_settings_are_stale(kfx, in_folder):
    made(kfx)
    made(kfx, "seed=1", name="r1")
    code, _, err = kfx("reproduce", "--add", "r", "r1", "--page")
    assert code == 0, err
    (path,) = (in_folder / FOLDER).glob("*.csv")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["seed"] for row in rows] == ["0", "1"]
    assert {row["metric"] for row in rows} == {"mse"}
    page = in_folder / "REPRODUCTION.md"
    assert "2 seeds" in page.read_text()
    assert "| within 2 % |" in row_of(page, "6.865")
    path.write_text(path.read_text().replace(rows[0]["measured"], "9.5"))
    code, _, err = kfx("reproduce", "--check")
    assert code == 1
    assert "kfx reproduce --page" in err
    made(kfx, name="r2")  # the same seed again: its row is replaced
    assert kfx("reproduce", "--add", "r2")[0] == 0
    assert [row["seed"] for row in csv.DictReader(path.read_text().splitlines())] == ["0", "1"]
    assert "9.5" not in path.read_text()
    about = yaml.safe_load(path.with_suffix(".yaml").read_text())
    about["settings"]["regularization"]["value"] = 0.5
    about["settings"]["kernel"]["gone"] = 1
    path.with_suffix(".yaml").write_text(yaml.safe_dump(about))
    assert kfx("reproduce", "--page")[0] == 0
    assert "kernel.gone: 1, no longer there; regularization.value: 0.5, 0.0001" in page.read_text()
    assert "| stale |" in row_of(page, "6.865")
    assert kfx("reproduce", "--check")[0] == 0


def test_a_run_of_an_experiment_that_has_changed_since_is_no_measurement(kfx, in_folder):
    made(kfx, "optimizer.iterations=2", "optimizer.iterations=3")
    command = Command.of_run(Path("r"))
    assert command.overrides == ("optimizer.iterations=3",), "the last of two words for a key holds"
    raw = of_job(command.words)
    raw.regularization.value = 0.5
    with pytest.raises(
        RecordError, match=r"r: the experiment has changed since \(regularization.value: .*, 0.5\); run it again"
    ):
        tables.measure(Path("r"), [], raw)


def test_a_smoke_run_is_no_measurement(kfx, in_folder):
    assert kfx("run", "--smoke", f"+experiment={RBF}", "hydra.run.dir=r")[0] == 0
    code, _, err = kfx("reproduce", "--add", "r")
    assert code == 2
    assert "r: is a smoke run" in err


def test_an_option_that_is_new_makes_nothing_stale():
    raw = of_job([f"+experiment={RBF}"])
    kept = tables.settings(raw)
    del kept["optimizer"]
    table = tables.Table(Command(RBF), kept, ())
    assert table.changed(raw) == []


def test_rows_of_before_an_option_stay_and_those_of_other_settings_go():
    now = tables.settings(of_job([f"+experiment={RBF}"]))
    before = {key: value for key, value in now.items() if key != "follow"}
    other = {**now, "kernel": {**now["kernel"], "sigma": 9.0}}
    rows = [{"seed": str(seed), "measured": "1"} for seed in range(2)]
    new = tables.Table(Command(RBF), now, (rows[1],))
    assert tables.merged(tables.Table(Command(RBF), before, (rows[0],)), new).rows == tuple(rows)
    assert tables.merged(tables.Table(Command(RBF), other, (rows[0],)), new).rows == (rows[1],)


@pytest.mark.slow
def test_a_seed_is_known_if_its_run_was_asked_for_all_numbers():
    rows = [
        dict.fromkeys(tables.COLUMNS, "") | {"seed": seed, "metric": metric, "kernel": "trained", "statistic": "mean"}
        for seed, metric in (("0", "mse"), ("1", "mse"), ("1", "mae"))
    ]
    table = tables.Table(Command(RBF), {}, tuple(rows))
    assert table.seeds_with([Quantity("mse")]) == [0, 1]
    assert table.seeds_with([Quantity("mse"), Quantity("mae")]) == [1], "a number was added to the config since"


def test_what_is_missing_is_run_and_not_run_again(kfx, in_folder):
    code, out, err = kfx("reproduce", RBF, "--seeds", "2", "--jobs", "2")
    assert code == 0, err
    assert "2 runs are missing" in out
    assert re.search(r"kfx reproduce 2/2  about 0 s left", err)
    (path,) = (in_folder / FOLDER).glob("*.csv")
    assert {row["seed"] for row in csv.DictReader(path.read_text().splitlines())} == {"0", "1"}
    out = kfx("reproduce", RBF, "--seeds", "2")[1]
    assert "0 runs are missing" in out
    assert "+experiment=khalid/three_bumps_rbf" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["khalit"], "khalit: is no paper or experiment"),
        (["first_light/mnist_rbf"], "no number is printed for it"),
        (["darcy", "--seeds", "0"], "--seeds 0: expected a number above 0"),
        (["darcy", "--budget", "-1"], "--budget -1: expected a number above 0"),
        (["--add", "nothing"], "nothing: is no run of an experiment"),
    ],
)
def test_bad_words_are_one_line(kfx, in_folder, words, said):
    code, out, err = kfx("reproduce", *words)
    assert code == 2, out
    assert said in err
    assert len(err.strip().splitlines()) == 1


def committed(folder, name="owhadi_yoo-greens_random-*"):
    for path in (ROOT / FOLDER).glob(name):
        (folder / path.name).write_bytes(path.read_bytes())
    return next(folder.glob("*.csv"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "line"),
        (lambda text: text.replace("mean", "mean,3", 1), "expected the columns"),
        (lambda text: text.splitlines()[0] + "\n", "has no rows"),
        (lambda text: text.replace("\n0,", "\nzero,", 1), "seed=zero: expected a number"),
    ],
)
def test_a_damaged_table_is_one_line(tmp_path, damage, said):
    path = committed(tmp_path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(RecordError, match=said):
        tables.read(tmp_path)


def test_a_table_without_its_settings_is_one_line(tmp_path):
    committed(tmp_path).with_suffix(".yaml").unlink()
    with pytest.raises(RecordError, match="damaged"):
        tables.read(tmp_path)


def test_a_table_of_no_experiment_is_one_line(tmp_path):
    path = committed(tmp_path).with_suffix(".yaml")
    path.write_text(path.read_text().replace("greens_random", "greens_gone"))
    with pytest.raises(RecordError, match="greens_gone, which is no experiment"):
        gather(tmp_path)


def test_a_remark_that_is_not_understood_is_one_line(tmp_path):
    committed(tmp_path)
    (tmp_path / "remarks.yaml").write_text("owhadi_yoo/greens_random: [1, 2]\n")
    with pytest.raises(ConfigError, match="expected why, readings"):
        gather(tmp_path)


@pytest.mark.slow
def test_at_the_deadline_what_runs_is_interrupted_and_goes_on_later(in_folder):
    words = ("+experiment=darcy/synthetic_rbf", "checkpoint.iterations=5", "optimizer.iterations=20000")
    for seconds in (8, 30, 90):  # on a busy machine the first is spent before the run has begun
        job = logged.logged(words, in_folder / f"r{seconds}" / "seed-0")
        said: list[str] = []
        assert not logged.run([job], 1, tell=said.append, deadline=time.monotonic() + seconds)
        assert "the budget is spent" in said[0]
        if (job.directory / "metrics.json").is_file():
            break
    assert json.loads((job.directory / "metrics.json").read_text())["status"] == "interrupted"


LONG = ("+experiment=darcy/synthetic_rbf", "optimizer.iterations=2000000")


@pytest.mark.slow
def test_an_error_between_runs_does_not_wait_for_those_that_run(in_folder):
    def jobs():
        yield logged.logged(LONG, in_folder / "r" / "seed-0")
        raise ConfigError("no further job")

    with pytest.raises(ConfigError, match="no further job"):
        logged.run(jobs(), 2, tell=print)


@pytest.mark.slow
def test_a_command_that_cannot_be_run_here_is_named_and_the_others_are_run(kfx, in_folder, monkeypatch):
    usual = Missing.job

    def job(missing):
        if missing.seed == 0:
            raise ConfigError("kernel=ntk: needs a package that is not here")
        return usual(missing)

    monkeypatch.setattr(Missing, "job", job)
    code, out, err = kfx("reproduce", RBF, "--seeds", "2")
    assert code == 1, err
    assert "seed=0: kernel=ntk: needs a package that is not here" in out
    assert "1 runs are missing" in kfx("reproduce", RBF, "--seeds", "2")[1]


@pytest.mark.slow
def test_a_job_that_fails_is_named_with_its_log(in_folder):
    job = logged.logged([], in_folder / "r" / "seed-0")
    job.directory.mkdir(parents=True)
    (job.directory / "metrics.json").write_text('{"status": "completed", "identity": "of another"}')
    said: list[str] = []
    assert logged.run([job], 1, tell=said.append) == [job]
    assert "failed with exit code 2" in said[0]
    assert "holds a run of another config" in job.log.read_text()


def test_what_an_experiment_chooses_anyway_makes_no_other_command():
    experiment = "owhadi_yoo/mnist_network"
    assert Command.of(experiment, ["objective=rho", "seed=1"]) == Command(experiment)
    other = Command.of(experiment, ["objective=cross_entropy"])
    assert other.overrides == ("objective=cross_entropy",)
    printed = read_published(experiment)
    assert {each.text for each in of_command(printed, Command(experiment))} >= {"0.0064"}
    assert "0.0064" not in {each.text for each in of_command(printed, other)}


def test_curves_are_not_among_the_closing_lines(kfx, in_folder):
    words = ("+experiment=owhadi_yoo/greens_recovery", "optimizer.iterations=3", "evaluation.repeats=2")
    code, out, err = kfx("run", *words, "figures=false", "hydra.run.dir=r")
    assert code == 0, err
    assert "published" not in out


def test_every_iteration_whose_objective_is_undefined_counts(kfx, in_folder):
    words = ["dataset=three_bumps", "dataset.n_train=20", "sampler.batch_size=10", "optimizer.iterations=6"]
    assert kfx("run", *words, "figures=false", "hydra.run.dir=r")[0] == 0
    trace = pd.read_csv("r/trace.csv")
    events = ["diverged;reinitialized", "rho_out_of_range;minimum_rejected", "at_bound", "", "not_positive_definite",
              "not_positive_definite;flow_stopped;at_bound"]  # fmt: skip
    trace.assign(event=events).to_csv("r/trace.csv", index=False)
    metrics = json.loads(Path("r/metrics.json").read_text())
    assert measured_as(Quantity(metric="undefined objectives"), metrics, Path("r")) == 4
    trace.assign(event="").to_csv("r/trace.csv", index=False)
    assert measured_as(Quantity(metric="undefined objectives"), metrics, Path("r")) == 0


@pytest.mark.parametrize(("kernel", "error"), [("initial", 0.1), ("trained", 0.3)])
def test_errors_over_the_last_layers_are_those_of_the_trained_kernel(tmp_path, kernel, error):
    evaluation = [
        {"kernel": name, "metric": "accuracy", "n_interpolation": 10, "mean": mean}
        for name, mean in (("initial", 0.9), ("trained", 0.8))
    ]
    metrics = {"evaluation": evaluation, "last_layers": [{"metric": "error", "n_interpolation": 10, "mean": 0.3}]}
    found = measured_as(Quantity(metric="error", kernel=kernel, n_interpolation=10), metrics, tmp_path)
    assert found == pytest.approx(error)


def test_the_deviation_beside_a_mean_is_that_of_its_window():
    first, second = [1, 10], [11, 20]
    own = [
        Printed("error", window=window, statistic=statistic, value=float(text), text=text)
        for statistic, window, text in (("sd", first, "0.1"), ("sd", second, "0.3"), ("mean", second, "2"))
    ]
    item = numbers._part(Command("owhadi_yoo/mnist_network", ()), own, None, False, True).items[0]
    assert (item.printed.text, item.deviation) == ("2", "0.3")
