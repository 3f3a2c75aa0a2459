"""Every snippet of README and of the pages is run: Python as it stands, commands with few iterations."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from kfx import load_run
from kfx.experiment.compose import load

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\{[\w-]+\}|\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
KINDS = {"python", "sh", "text", "toml", "yaml", "math", "{include}", "{toctree}", "{eval-rst}"}


def blocks(page, kind):
    return [body for found, body in BLOCK.findall((ROOT / page).read_text()) if found == kind]


def commands(page):
    """Command lines, continued lines joined and comments left out."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    return [line.split("   #")[0].strip() for line in text.splitlines() if line.strip()]


def each(pages):
    """README is quick; the others are tested by `make test-all`."""
    return [page if page == "README.md" else pytest.param(page, marks=pytest.mark.slow) for page in pages]


def fewer(word):
    """An override, with two seeds in place of more, and a fifth of many points."""
    key, _, value = word.partition("=")
    if key in ("dataset.n_train", "dataset.n_test") and len(value) > 2:
        return f"{key}={int(value) // 5}"
    return re.sub(r"^seed=range\(\d+\)$", "seed=range(2)", word)


def quick(words):
    """The words of a command under which it ends in seconds."""
    words = [fewer(word) for word in words] if words[0] == "run" else words
    if words[0] == "run" and any(word.startswith("+experiment=") for word in words):
        return [*words, *([] if "--smoke" in words or "--cfg" in words else ["--smoke"])]
    if words[0] != "run" or "--help" in words:
        return words
    rest = [word for word in words if not word.startswith("optimizer.iterations=")]
    return [*rest, "optimizer.iterations=2"]


@pytest.mark.slow
@pytest.mark.parametrize("page", each(page for page in PAGES if blocks(page, "sh")))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_commands_do_what_they_say(kfx, in_folder, page):
    for line in commands(page):
        words = shlex.split(line)
        if words[0] != "kfx":
            assert words[0] == "python", line
            subprocess.run([sys.executable, *words[1:]], check=True)
        elif words[1] == "export":  # its tools take hold of the standard streams
            subprocess.run([sys.executable, "-m", "kfx", *words[1:]], check=True, capture_output=True)
        else:
            code, _, err = kfx(*quick(words[1:]))
            assert code == 0, f"{line}\n{err}"


def assert_shown(page, out):
    """The lines of numbers that a page shows are among those printed: the words, and the numbers within 1 %."""
    printed = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    for line in page.splitlines():
        if line.startswith(("kernel ", "rho ", "N_I ")):
            found = printed[line.split()[0]]
            assert NUMBER.sub("", line).split() == NUMBER.sub("", found).split()
            measured = [float(number) for number in NUMBER.findall(found)]
            assert [float(number) for number in NUMBER.findall(line)] == pytest.approx(measured, rel=0.01)


@pytest.mark.slow
def test_readme_prints_what_its_commands_measure(kfx, in_folder):
    """`mse before → after` of a comment and the accuracies of the film, each by its command in full."""
    text = " ".join((ROOT / "README.md").read_text().split())
    size, *accuracies = re.search(r"from (\d+) of the .*? an accuracy of ([\d.]+) to ([\d.]+)\.", text).groups()
    (film,) = re.findall(r"kfx (run \+experiment=first_light/digits_flow .*?) kfx", text)
    (error,) = re.findall(r"kfx (run) # an RBF kernel .*?mse (\d+) → (\d+)", text)
    for i, (command, *claimed) in enumerate([error, (film, *accuracies)]):
        words = ["figures=false", "device.precision_check=off", f"hydra.run.dir=r{i}"]
        code, out, err = kfx(*command.split(), *words)
        assert code == 0, err
        if command == "run":
            (shown,) = [body for body in blocks("docs/run.md", "text") if "held-out batches" in body]
            assert_shown(shown, out)
        of = "metric == 'mse'" if command == "run" else f"metric == 'accuracy' and n_interpolation == {size}"
        means = load_run(f"r{i}").evaluation.query(of).groupby("kernel")["value"].mean()
        assert [means["initial"], means["trained"]] == pytest.approx([float(each) for each in claimed], rel=0.01)
        assert abs(means["trained"] - means["initial"]) > 0.2 * means["initial"], "an example shows its point"


@pytest.mark.parametrize("page", each(page for page in PAGES if page != "docs/parts.md" and blocks(page, "python")))
def test_python_runs_as_it_stands_and_prints_the_numbers_beside_it(in_folder, capsys, page):
    for i, body in enumerate(blocks(page, "python")):
        capsys.readouterr()
        exec(compile(body, f"{page}, block {i}", "exec"), {"__name__": "__main__"})
        printed = [float(number) for number in re.findall(r"\d+\.\d+", capsys.readouterr().out)]
        for said in re.findall(r"^print\(.*\)  # (\d+\.\d+)$", body, re.MULTILINE):
            assert float(said) == pytest.approx(printed[-1], abs=0.0005), "the last on the line"


def test_readme_shows_a_score_that_is_tested():
    assert re.search(r"^print\(.*\.score\(.*\)  # 0\.\d+$", "".join(blocks("README.md", "python")), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_links_between_files_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        path = (ROOT / page).parent / target
        generated = target == "gallery/index"
        assert generated or path.exists() or path.with_suffix(".md").exists(), target


def test_the_guide_to_emulators_says_what_the_notes_measure():
    guide = (ROOT / "docs/emulators.md").read_text().partition("## Which settings")[2].partition("\n## ")[0]
    found = re.findall(r"(\d\.\d\d) to (\d\.\d\d) times|on (\d of \d) simulators", guide)
    notes = (ROOT / "docs/emulators_notes.md").read_text()
    assert len(found) == 4
    assert all(" to ".join(filter(None, each)) in notes for each in found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* whole numbers are taken as classes")  # seen where jobs run in this process
def test_the_tutorial_shows_what_its_commands_measure(kfx, in_folder):
    lines = [shlex.split(line) for line in commands("docs/tutorial.md")]
    subprocess.run([sys.executable, *lines[0][1:]], check=True)
    (sweep,) = [words for words in lines if "-m" in words]
    assert kfx(*sweep[1:])[0] == 0
    assert kfx("compare", "runs/ways", "--by", "optimizer", "--n-interpolation", "30", "--csv", "t.csv")[0] == 0
    found = pd.read_csv("t.csv").set_index("optimizer")[["accuracy", "rho_initial", "rho_final"]]
    row = re.compile(r"^\| (\w+) \| ([\d.]+) .*? \| ([\d.]+) .*? \| ([\d.]+) ", re.MULTILINE)
    shown = row.findall((ROOT / "docs/tutorial.md").read_text())
    assert [name for name, *_ in shown] == ["flow_euler", "adam", "none"]
    for name, *numbers in shown:
        assert found.loc[name].tolist() == pytest.approx([float(number) for number in numbers], rel=0.03)


def test_every_block_says_what_it_is():
    for page in PAGES:
        for kind, body in BLOCK.findall((ROOT / page).read_text()):
            assert kind in KINDS, (page, kind, body[:60])


@pytest.mark.parametrize("page", PAGES)
def test_no_line_is_lost_as_a_comment(page):
    assert not re.search(r"^%", BLOCK.sub("", (ROOT / page).read_text()), re.MULTILINE), "MyST leaves such a line out"


def test_readme_fits_two_screens_and_its_film_a_megabyte():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 105
    (film,) = re.findall(r"!\[.*\]\((.*\.gif)\)", text)
    assert (ROOT / film).stat().st_size <= 1e6


def test_the_ways_of_an_example_are_what_their_names_say(in_folder):
    source = (ROOT / "docs/examples/plot_2_own_table.py").read_text().partition("def errors")[0]
    found: dict = {}
    exec(compile(source, "plot_2_own_table", "exec"), found)
    assert {name: settings(load([*found["own"], *words])) for name, words in found["ways"].items()} == {
        "ρ, λ = 1e-4": ("rho", "fixed", 1e-4, None),
        "ρ, λ by validation": ("rho", "fixed", 1e-4, "validation"),
        "likelihood, λ trained": ("nll", "trained", 0.03, None),
    }


def settings(config):
    """The objective, λ of the training, and that of predictions where it is another."""
    own = config.regularization
    return config.objective.name, own.selection, own.value, config.evaluation.regularization.value


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plot_5_torch_features", "plot_6_gpytorch", "plot_9_left_out"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_examples_with_torch_run(in_folder, name, monkeypatch):
    """The others are run by `make docs`; so are these, with what only the full run shows."""
    import matplotlib.pyplot as plt

    source = re.sub(r"^assert .*\n", "", (ROOT / f"docs/examples/{name}.py").read_text(), flags=re.MULTILINE)
    exec(
        compile(source.replace("201", "21").replace("range(200)", "range(20)"), name, "exec"), {"__name__": "__main__"}
    )
    assert plt.get_fignums()
    plt.close("all")
