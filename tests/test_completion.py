"""Completion in bash, zsh and fish, and commands that answer without an arithmetic library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import one_in, slow_after

BIN = Path(sys.executable).parent


def completed(line, shell, folder):
    """What the shell is offered at the end of a line: argcomplete's protocol, as its shell functions speak it."""
    answers = folder / "answers"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": shell,
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answers),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n\"'><=;|&(:" if shell == "bash" else "",
    }
    subprocess.run([sys.executable, str(BIN / "kfx")], env=environment, check=True, timeout=30)
    between = {"bash": "\n", "zsh": ":", "fish": "\t"}[shell]  # a word and its description
    return [word.partition(between)[0].strip() for word in answers.read_text().splitlines()]


@pytest.mark.parametrize("shell", slow_after(1, ["bash", "zsh", "fish"]))
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("kfx re", "resume"),
        ("kfx run opti", "optimizer="),
        ("kfx run optimizer=ad", "optimizer=adam"),
        ("kfx run kernel.sig", "kernel.sigma="),
        ("kfx run kernel.architecture=res", "kernel.architecture=resnet"),
        ("kfx run +exp", "+experiment="),
        ("kfx run seed=1 +experiment=darcy/boston", "+experiment=darcy/boston_flow"),
        ("kfx list ker", "kernel"),
    ],
)
def test_words_are_completed(tmp_path, shell, line, offered):
    found = completed(line, shell, tmp_path)
    value = offered.partition("=")[2] or offered
    assert offered in found or value in found, found


@pytest.mark.parametrize("shell", slow_after(1, ["bash", "zsh", "fish"]))
def test_the_command_prints_its_completion(kfx, shell):
    code, out, _ = kfx("completion", shell)
    assert code == 0
    assert "kfx" in out
    assert {"bash": "complete -o", "zsh": "compdef", "fish": "complete --command"}[shell] in out


def test_bash_itself_completes(tmp_path):
    """The function that bash would call, in bash."""
    script = (
        f'export PATH="{BIN}:$PATH"; eval "$(kfx completion bash)"; '
        "COMP_WORDS=(kfx run kernel=rat); COMP_CWORD=2; COMP_LINE='kfx run kernel=rat'; COMP_POINT=18; COMP_TYPE=9; "
        '_python_argcomplete kfx; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert "rational_quadratic" in done.stdout, done.stderr


LIGHT = {
    "list": ("list",),
    "an option's keys": ("list", "kernel", "cnngp"),
    "a misspelt key": ("run", "kernel.sigam=2"),
    "the config": ("run", "--cfg", "job"),
    "help": ("run", "--help"),
}
HEAVY = ("torch", "jax", "sklearn", "scipy", "matplotlib", "pandas", "numba")


@pytest.mark.parametrize("case", one_in(2, LIGHT))
def test_words_are_checked_without_arithmetic(tmp_path, case):
    """Importing torch and scikit-learn takes seconds; a word needs neither."""
    code = (
        "import sys; from kfx.cli import main; main(sys.argv[1:]); "
        f"print('LOADED', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *LIGHT[case]], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert "LOADED []" in done.stdout, done.stdout[-300:] + done.stderr[-300:]


@pytest.mark.slow
def test_a_run_on_embedded_data_needs_no_scikit_learn(tmp_path):
    code = "import sys; from kfx.cli import main; main(sys.argv[1:]); print('sklearn' in sys.modules)"
    words = ["run", "optimizer.iterations=1", "figures=false", "device.precision_check=off"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr


@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_embedded_data_are_scikit_learns_bit_for_bit(name, monkeypatch):
    import numpy as np

    from kfx.data import embedded

    make = getattr(embedded, name)
    settings = {"digits": (None, 0, None), "diabetes": (None, 0)}[name]
    ours = make(*settings, np.random.default_rng(0))
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)  # where its files are not found
    theirs = make(*settings, np.random.default_rng(0))
    np.testing.assert_array_equal(ours.x_train, theirs.x_train)
    np.testing.assert_array_equal(ours.y_train, theirs.y_train)
