"""Files that a person names: never one of a record or store, a pipe stays a pipe, an error leaves what was there."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import kfx as package
from kfx.outcomes import ConfigError
from kfx.record.output import require_places, written
from tests.conftest import QUICK

RUN = ("dataset.n_train=40", "dataset.n_test=10", "sampler.batch_size=20", "optimizer.iterations=2", *QUICK)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A sweep of two runs, and a Gram store."""
    folder = tmp_path_factory.mktemp("made")
    package.sweep(["seed=0,1", *RUN, f"hydra.sweep.dir={folder / 's'}"], progress=False)
    from kfx.cli import main

    assert main(["gram", *RUN[:2], "--store", str(folder / "g")]) == 0
    np.savez(folder / "new.npz", x=np.zeros((3, 10)))
    return folder


@pytest.fixture
def there(made, in_folder):
    shutil.copytree(made, in_folder, dirs_exist_ok=True)
    return in_folder


WRITERS = {
    "predict --output": (["predict", "s/0", "new.npz"], ".csv"),
    "compare --csv": (["compare", "s", "--metric", "mse"], ".csv"),
    "compare --latex": (["compare", "s", "--metric", "mse"], ".tex"),
    "compare --markdown": (["compare", "s", "--metric", "mse"], ".md"),
    "compare --figure": (["compare", "s", "--metric", "mse"], ".png"),
    "compare --curve": (["compare", "s", "--metric", "mse"], ".png"),
    "report --output": (["report", "s/0"], ".html"),
}


def call(kfx, writer, place):
    words, option = WRITERS[writer][0], writer.split()[1]
    return kfx(*words, option, str(place))


def content(folder):
    return {path: path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_file_of_a_record_or_store_is_written(kfx, there, writer):
    suffix, before = WRITERS[writer][1], content(there)
    (there / "link").symlink_to(there / "s/0")
    to_metrics = there / f"to{suffix}"
    to_metrics.symlink_to(there / f"s/1/new{suffix}")
    new = [f"{folder}/new{suffix}" for folder in ("s/0", "s/0/figures", "s/0/../1", "g", "g/gram/c/0", "link")]
    places = [*new, "s/0/metrics.json", "s/1/trace.csv", "s/sweep.csv", to_metrics, "s"]
    for place in places:
        code, out, err = call(kfx, writer, place)
        assert (code, out, len(err.splitlines())) == (2, "", 1), (place, err)
        assert "choose another" in err or "expected" in err, err
    os.unlink("link"), to_metrics.unlink()
    assert content(there) == before


@pytest.mark.parametrize("writer", WRITERS)
def test_a_pipe_stays_a_pipe_and_takes_what_a_file_does(kfx, there, writer):
    suffix = WRITERS[writer][1]
    pipe, file, found = Path(f"pipe{suffix}"), Path(f"new/file{suffix}"), []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    code, out, err = call(kfx, writer, pipe)
    reader.join()
    assert (code, str(pipe) in out.splitlines()) == (0, False), err
    assert pipe.is_fifo()
    code, out, err = call(kfx, writer, file)
    assert (code, out.splitlines()[-1]) == (0, str(file)), err
    assert found[0] == file.read_bytes()
    assert {path.name for path in file.parent.iterdir()} == {file.name}


def test_devices_and_links_stay(there, capfd):
    before = os.stat("/dev/null").st_rdev
    for place in ("/dev/null", "/dev/stdout"):
        with written("--csv", Path(place)) as path:
            path.write_text("a\n")
    assert os.stat("/dev/null").st_rdev == before
    assert Path("/dev/stdout").is_symlink()
    assert capfd.readouterr().out == "a\n"
    Path("real.csv").write_text("old")
    Path("link.csv").symlink_to("real.csv")
    with pytest.raises(TypeError), written("--csv", Path("link.csv")) as path:
        path.write_text(path.write_text("half"))
    assert Path("real.csv").read_text() == "old"
    with written("--csv", Path("link.csv")) as path:
        path.write_text("new")
    assert (Path("link.csv").is_symlink(), Path("real.csv").read_text()) == (True, "new")


def test_what_lies_beside_is_not_followed(there):
    Path("precious").write_text("precious")
    Path(".partial.t.csv").symlink_to("precious")
    with written("--csv", Path("t.csv")) as path:
        path.write_text("new")
    assert Path("precious").read_text() == "precious"


def test_files_that_are_read_or_named_twice(there):
    with pytest.raises(ConfigError, match="is the file of the rows"):
        require_places({"--output": Path("new.npz")}, [Path("./new.npz")])
    with pytest.raises(ConfigError, match=r"--latex .*is the file of --csv too"):
        require_places({"--csv": Path("t"), "--latex": Path("./t"), "--curve": None})
    Path("metrics.json").write_text('{"rmse": 1}')  # of another tool: no record
    require_places({"--csv": Path("t.csv")})


@pytest.mark.parametrize(
    "words",
    [
        ["gram", "--output", "s/0"],
        ["precision", "--output", "s/0"],
        ["study", "--folder", "s/0/studies"],
        ["reproduce", "--tables", "s/0"],
        ["export", "tensorboard", "s", "--to", "s/0"],
        ["export", "wandb", "s", "--to", "s/0/w"],
        ["export", "mlflow", "s", "--to", "sqlite:///s/0/metrics.json"],
    ],
    ids=" ".join,
)
def test_no_folder_of_a_record_is_taken(kfx, there, words):
    if words[0] == "export":
        pytest.importorskip(words[1])
    before = content(there)
    code, out, err = kfx(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert "lies in the run" in err
    assert content(there) == before
