"""The `kfx` command. Heavy libraries are imported only when a subcommand needs them."""
# PYTHON_ARGCOMPLETE_OK

from __future__ import annotations

import argparse
import atexit
import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

from kfx.commands import run
from kfx.outcomes import NO_ROOM, ConfigError, KfxError
from kfx.screen import terminal
from kfx.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code.

    0: success. 1: a failed run. 2: input that cannot be run. 3: a record that has changed since its run. 128 and more:
    ended by a signal.
    """
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(_parser()[0])
    words = list(sys.argv[1:] if arguments is None else arguments)
    terminal.open_missing()
    gc.set_threshold(50_000, 10, 10)  # with Python's 700, searches for garbage take a tenth of a short run
    atexit.register(lambda: None if "jaxlib" in sys.modules else gc.freeze())  # or the end searches modules for garbage
    os.environ["MPLBACKEND"] = "agg"  # kfx draws into files; a missing backend would stop matplotlib
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch shares the GPU with JAX
    if words[:1] in (["run"], ["resume"], ["rerun"]):
        with terminal.unfailing():
            # run.run parses its words itself: those of a config may begin with + or ~
            return _guarded(lambda: run.run(words[1:]) if words[0] == "run" else _call(words))
    code = _guarded(lambda: _call(words))
    with terminal.unfailing():  # flush here, so that the interpreter's end cannot fail
        return code


def _call(words: list[str]) -> int:
    parser, commands = _parser()
    if words and words[0] in commands:  # so that options may stand between other words
        parsed = commands[words[0]].parse_intermixed_args(words[1:])
    else:
        parsed = parser.parse_args(words)
    return parsed.call(parsed)


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from kfx.config.nodes import near

            what = action.metavar or action.dest
            raise ConfigError(f"{self.prog} {value}: expected a {what}: {near(value, list(action.choices))}")


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the command, and the parsers of its subcommands by name."""
    from kfx.commands import catalogue, compare, export, gram, precision, predict, report, runs
    from kfx.papers import reproduce, study

    parser = _Parser("kfx", description="An experiment runner for Kernel Flows.")
    parser.add_argument("--version", action="version", version=f"kfx {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    for command in (run, catalogue, gram, runs, predict, compare, export, report, reproduce, study, precision):
        command.add(commands)
    return parser, dict(commands.choices)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"kfx: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _guarded(call: Callable[[], int]) -> int:
    interrupted: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)
    try:
        with warnings.catch_warnings(), terminal.quiet_interrupts():
            warnings.showwarning = _show_warning
            code = call()
            sys.stdout.flush()
            return code
    except KfxError as error:
        print(f"kfx: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return 141
    except OSError as error:
        print(f"kfx: {error.filename or 'storage'}: {error.strerror or error}; choose another path", file=sys.stderr)
        return 1 if error.errno in NO_ROOM else 2
    except KeyboardInterrupt as error:
        if error.args:  # a run has reported it, with its exit code
            return int(error.args[0])
        print("kfx: interrupted", file=sys.stderr)
        return 130
    except Exception:
        if not interrupted:
            raise
        print("kfx: interrupted", file=sys.stderr)  # a library replaced the interruption by its own error
        return 130
