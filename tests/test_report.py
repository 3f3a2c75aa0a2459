"""`kfx report`: a page that needs nothing else, and shows what the record holds."""

import base64
import json
import re
import shlex
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import pytest

import kfx as package
from kfx import plots
from kfx.report.typed import as_typed

RUN = ("dataset.n_train=40", "dataset.n_test=20", "sampler.batch_size=20", "optimizer.iterations=4", "figures=false")
RUN += ("device.precision_check=off",)
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """What a page has, by kind."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.ids, self.links, self.downloads, self.texts, self.captions = [], [], [], {}, [], []
        self.feed(Path(path).read_text())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"])
        for key in ("src", "href", "xlink:href", "action"):
            if key in found:
                self.links.append(found[key])
        if "download" in found:
            self.downloads[found["download"]] = base64.b64decode(found["href"].partition(",")[2])

    def handle_data(self, data):
        if data.strip():
            self.texts.append(data.strip())
            if self.tags[-1] == "figcaption":
                self.captions.append(data.strip())


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """A run, once for all tests."""
    folder = tmp_path_factory.mktemp("once") / "r"
    package.run(
        ["kernel=rbf", *RUN, "report=true", f"hydra.run.dir='{folder}'", f"published=[{PRINTED}]"], progress=False
    )
    return folder


@pytest.fixture
def ran(once, in_folder):
    return shutil.copytree(once, in_folder / "r")


PRINTED = "{metric: accuracy, value: 0.5, source: 'A paper, Table 1'}"


@pytest.mark.slow
def test_a_run_writes_its_page_where_asked_to(ran):
    page = Page(ran / "report.html")
    assert "rbf" in " ".join(page.texts)
    assert {"A paper, Table 1", "0.5"} <= {*page.texts}
    assert page.tags.count("svg") >= 3
    for name in ("trace.csv", "evaluation.csv"):
        assert page.downloads[name] == (ran / name).read_bytes()
    assert any("kfx run kernel=rbf" in text for text in page.texts)


def test_a_page_needs_nothing_from_elsewhere(ran):
    page = Page(ran / "report.html")
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert len(page.ids) == len(set(page.ids))


@pytest.mark.slow
def test_a_page_is_the_same_each_time(kfx, once, in_folder):
    assert kfx("report", str(once), "--output", "again.html")[0] == 0
    assert (in_folder / "again.html").read_bytes() == (once / "report.html").read_bytes()


@pytest.mark.slow
def test_the_runs_of_a_sweep_share_a_page(kfx, in_folder):
    assert kfx("run", "-m", "kernel=rbf,linear", *RUN, "hydra.sweep.dir=s")[0] == 0
    code, out, err = kfx("report", "s", "--output", "pages/sweep.html")
    assert code == 0, err
    assert out.strip() == "pages/sweep.html"
    page = Page(in_folder / "pages" / "sweep.html")
    assert {"kernel=rbf", "kernel=linear", "2 runs"} <= {*page.texts}
    assert page.tags.count("summary") >= 2


def test_a_run_that_ended_early_has_a_page(kfx, ran, in_folder):
    path = in_folder / "r" / "metrics.json"
    metrics = json.loads(path.read_text())
    path.write_text(json.dumps({"status": "failed", "reason": "the lights went out", "identity": metrics["identity"]}))
    for name in ("evaluation.csv", "held_out.csv"):
        (in_folder / "r" / name).unlink()
    code, _, err = kfx("report", "r")
    assert code == 0, err
    assert "the lights went out" in Page(in_folder / "r" / "report.html").texts


EVERY_PICTURE = {
    "a length for each feature": ["kernel.ard=true", "evaluation.calibration=true"],
    "search of two parameters": ["kernel=rational_quadratic", "optimizer=bayesian", "optimizer.initial_points=3"],
    "grid": ["optimizer=grid", "optimizer.points=3", "kernel_check=true"],
    "sample that changes": ["dataset=three_bumps", "sampler=dynamic", "sampler.window=2", "optimizer=sgd"],
    "flow on a line": ["dataset=line", "dataset.n_train=30", "optimizer=flow_euler", "flow.snapshots=3"],
    "flow in the plane": [
        *("+experiment=owhadi_yoo/swiss_roll_nugget", "dataset.n_train=30", "follow.last=2", "follow.every=2"),
        *("flow.snapshots=5", "flow.record_layers=true"),
    ],
    "flow of images": [
        *("dataset=digits", "dataset.n_train=40", "dataset.n_test=10", "optimizer=flow_euler"),
        *("evaluation.n_interpolation=[10]", "evaluation.draws=3"),
    ],
    "forecasts": [
        *("dataset=dynamics", "dataset.n_train=100", "dataset.n_test=60", "dataset.lags=2", "kernel.sigma=3"),
        *("evaluation=rollout", "evaluation.horizon=20", "evaluation.attractor_steps=50"),
    ],
    "green's function": ["+experiment=owhadi_yoo/greens_recovery", "evaluation.repeats=1", "follow.every=3"],
    "deep kernel machine": [
        *("+experiment=milsom/mnist", "dataset=digits", "dataset.n_train=60", "dataset.n_test=20"),
        *("dataset.preprocess=[normalize]", "kernel.architecture=small", "kernel.inducing=[4,5,6]"),
        *("sampler.batch_size=20", "sampler.padding=1", "objective.samples=4", "evaluation.n_interpolation=[20]"),
        *("follow.every=3", "follow.n_interpolation=[20]", "evaluation.batches=1"),
    ],
}
"""Runs that between them have data for every picture."""


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """Each of these runs, once for all tests: its folder, and the names of its pictures."""
    made = {}
    for name, words in EVERY_PICTURE.items():
        folder = tmp_path_factory.mktemp("drawn") / "r"
        small = [] if "sampler.batch_size=20" in words else ["sampler.batch_size=20"]
        small += [] if name == "grid" else ["device.precision_check=off"]
        small += ["optimizer.iterations=6", "figures=false", f"hydra.run.dir='{folder}'"]
        package.run([*words, *small], progress=False)
        made[name] = folder
    return made


@pytest.mark.slow
def test_these_runs_have_every_picture(drawn):
    runs = [package.load_run(folder) for folder in drawn.values()]
    assert [name for name, draw in plots.FIGURES.items() if not any(draw(run) for run in runs)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY_PICTURE)
def test_every_report_is_quick_and_small(drawn, tmp_path, kfx, name):
    began = time.process_time()
    code, _, err = kfx("report", str(drawn[name]), "--output", "page.html")
    assert (code, time.process_time() - began < 10) == (0, True), err
    page = Page("page.html")
    assert Path("page.html").stat().st_size < 3_000_000
    assert page.captions == [plots.caption(name) for name in plots.figures(drawn[name])]
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "kfx report nowhere: is no folder"),
        (["empty"], "kfx report empty: holds no run"),
        (["empty", "--output", "page.txt"], "--output page.txt: expected a name that ends in .html"),
    ],
)
def test_bad_words_are_one_line(kfx, in_folder, words, said):
    (in_folder / "empty").mkdir()
    code, _, err = kfx("report", *words)
    assert code == 2
    assert err.strip() == f"kfx: {said}"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["kfx", "run", "seed=1"], "kfx run seed=1"),
        (["sampler.sizes=[10,20]"], "'sampler.sizes=[10,20]'"),
        (["dataset.path='my file.csv'"], "\"dataset.path='my file.csv'\""),
        (["a='$HOME'"], None),
    ],
)
def test_a_command_is_shown_as_a_person_would_type_it(words, shown):
    line = as_typed(words)
    assert shlex.split(line) == words
    assert shown in (line, None)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_nothing_is_cut_off_on_a_telephone(ran, tmp_path):
    """The widest thing on the page is no wider than the window, and no table has more to the right."""
    probe = (
        "<script>addEventListener('load', () => { document.title = [...document.querySelectorAll('html, .wide, pre')]"
    )
    probe += ".map(e => e.scrollWidth - e.clientWidth).join(' '); })</script></body>"
    page = tmp_path / "page.html"
    page.write_text((ran / "report.html").read_text().replace("</body>", probe))
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    words = [*quiet, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=400,2000", "--dump-dom", page.as_uri()]
    done = subprocess.run([str(BROWSER), *words], capture_output=True, text=True, timeout=60, check=True)
    beyond = re.search(r"<title>([^<]*)</title>", done.stdout)[1].split()
    assert len(beyond) > 3
    assert max(map(int, beyond)) <= 0


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_shows_the_page(ran, tmp_path):
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    shot = tmp_path / "shot.png"
    words = [*quiet, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,1600", f"--screenshot={shot}"]
    done = subprocess.run(
        [str(BROWSER), *words, (ran / "report.html").as_uri()], capture_output=True, timeout=60, check=True
    )
    picture = matplotlib.image.imread(shot)[..., :3]
    assert picture.shape[:2] == (1600, 1200), done.stderr
    colours = {tuple(pixel) for pixel in (picture[::4, ::4].reshape(-1, 3) * 255).astype(int)}
    assert (0, 114, 178) in colours  # the first colour of every picture: the drawings are there
