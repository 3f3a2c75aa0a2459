"""The `kfx` command. Nothing heavy is imported before a subcommand needs it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kfx import __version__, terminal
from kfx.outcomes import ConfigError, KfxError

_RUN_HELP = """\
usage: kfx run [-m] [--cfg job] [--config-dir DIR] [+experiment=NAME] [group=option] [key=value] ...

Runs one experiment, or with -m every combination of comma-separated values.

  -m, --multirun     run a sweep: kfx run -m optimizer=sgd,adam seed=0,1
  --cfg job          print the composed config and stop (also: hydra, all; --resolve, --package)
  --config-dir DIR   look for further options of any group in DIR
  -h, --help         this text
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 1 for a failed run, 2 for input that cannot be run."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    terminal.open_missing()
    if "torch" not in sys.modules and not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = "1000"  # see kfx.threads
    os.environ["MPLBACKEND"] = "agg"  # kfx draws into files; a backend that is not there would stop matplotlib
    if words[:1] in (["run"], ["resume"], ["rerun"]):
        with terminal.unfailing():
            # The words of run are Hydra's, not argparse's.
            return _guarded(lambda: _run(words[1:]) if words[0] == "run" else _call(words))
    code = _guarded(lambda: _call(words))
    with terminal.unfailing():  # nothing is left for the interpreter's end to fail on
        return code


def _call(words: list[str]) -> int:
    parsed = _parser().parse_args(words)
    return parsed.call(parsed)


class _Parser(argparse.ArgumentParser):
    """Errors in one line, as everywhere else."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"kfx: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _guarded(call: Callable[[], int]) -> int:
    interrupted: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        interrupted.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)
    try:
        with warnings.catch_warnings():
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
        return 2
    except KeyboardInterrupt as error:
        if error.args:  # a run that has said so itself, with its exit code
            return int(error.args[0])
        print("kfx: interrupted", file=sys.stderr)
        return 130
    except Exception:
        if not interrupted:
            raise
        print("kfx: interrupted", file=sys.stderr)  # a library made an error of its own of it
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("kfx", description="An experiment runner for Kernel Flows.")
    parser.add_argument("--version", action="version", version=f"kfx {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command")
    commands.add_parser("run", help="run an experiment or a sweep (kfx run --help lists groups and options)")

    listing = commands.add_parser("list", help="experiments and the options of each group, a line each")
    listing.add_argument("group", nargs="?", help="one group only, say kernel or experiment")
    listing.add_argument("words", nargs="*", help="only options whose name or description holds all of these")
    listing.add_argument("--config-dir", help="look for further options of any group there")
    listing.add_argument("--names", action="store_true", help="names alone, for scripts")
    listing.add_argument("--smoke", action="store_true", help="experiments that end in seconds, and no others")
    listing.set_defaults(call=lambda p: _list(p.group, p.names, p.smoke, p.words, p.config_dir))

    data = commands.add_parser("data", help="data files: where they are, fetch them, verify them")
    data.add_argument("action", choices=("where", "fetch", "verify"))
    data.add_argument("dataset", nargs="*", help="mnist, fashion_mnist, cifar10; all of them by default")
    data.set_defaults(call=lambda parsed: _data(parsed.action, parsed.dataset))

    gram = commands.add_parser("gram", help="the Gram matrix of a configured kernel on a configured dataset")
    gram.add_argument("overrides", nargs="*", help="group=option and key=value, as for kfx run")
    gram.add_argument("--output", type=Path, default=Path("."), help="folder for gram.npy (default: here)")
    gram.add_argument("--test", action="store_true", help="also gram_test.npy: test points against training points")
    gram.add_argument("--block", type=int, default=500, help="rows computed at a time (default: 500)")
    gram.set_defaults(call=lambda parsed: _gram(parsed.overrides, parsed.output, parsed.test, parsed.block))

    again = commands.add_parser("resume", help="go on with an interrupted or killed run from its last checkpoint")
    again.add_argument("directory", type=Path)
    again.set_defaults(call=lambda parsed: _resume(parsed.directory))

    rerun = commands.add_parser("rerun", help="repeat a run from its record, and say whether the results agree")
    rerun.add_argument("directory", type=Path)
    rerun.add_argument("--output", type=Path, help="folder of the repetition (default: beside the run)")
    rerun.add_argument("--tolerance", type=float, default=1e-6, help="relative, where bits differ (default: 1e-6)")
    rerun.set_defaults(call=lambda parsed: _rerun(parsed.directory, parsed.output, parsed.tolerance))

    compare = commands.add_parser("compare", help="one table of many runs: mean and deviation over seeds")
    compare.add_argument("paths", nargs="+", type=Path, help="runs, sweeps, or folders of them")
    compare.add_argument("--by", default="kernel,optimizer", help="keys whose values make the rows")
    compare.add_argument("--metric", default="accuracy", help="accuracy, mse, mae, …")
    compare.add_argument("--kernel", default="trained", help="which kernel's evaluation (default: trained)")
    compare.add_argument("--n-interpolation", type=int, help="which N_I (default: the largest)")
    compare.add_argument("--mix", action="store_true", help="average runs that differ in more than their seed")
    compare.add_argument("--csv", type=Path, help="write the table here")
    compare.add_argument("--latex", type=Path, help="write it in LaTeX here")
    compare.add_argument("--figure", type=Path, help="draw it with error bars here")
    compare.set_defaults(call=_compare)

    animate = commands.add_parser("animate", help="a film of a flow's recorded positions")
    animate.add_argument("directory", type=Path)
    animate.add_argument("--output", type=Path, help="film.mp4 or film.gif (default: flow in the run's figures)")
    animate.add_argument("--seconds", type=float, default=10.0, help="length of the film (default: 10)")
    animate.set_defaults(call=lambda parsed: _animate(parsed.directory, parsed.output, parsed.seconds))

    plot = commands.add_parser("plot", help="draw the pictures of runs anew, from their records")
    plot.add_argument("directories", nargs="+", type=Path, metavar="RUN")
    plot.add_argument("--format", default="png", help="png, pdf, svg, or several with commas (default: png)")
    plot.set_defaults(call=lambda parsed: _plot(parsed.directories, parsed.format.split(",")))

    precision = commands.add_parser("precision", help="measure this machine's arithmetic, in every device and dtype")
    precision.add_argument("--allow-tf32", action="store_true", help="measure with TF32 allowed")
    precision.add_argument("--output", type=Path, default=Path("runs/precision"), help="folder for table and figure")
    precision.set_defaults(call=lambda parsed: _precision(parsed.allow_tf32, parsed.output))
    return parser


# ---- run


def _run(words: list[str]) -> int:
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    if {"-h", "--help"} & set(words):
        print(_RUN_HELP)
        return _list(None, names=False, smoke=False)
    parsed = parser.parse_args(words)

    from kfx import config

    if parsed.config_name or parsed.config_path:
        raise ConfigError("--config-name, --config-path: kfx has one primary config; use --config-dir for more options")
    if parsed.experimental_rerun:
        raise ConfigError("--experimental-rerun: would unpickle a file, which can run code; use kfx rerun RUN")
    if parsed.shell_completion or parsed.hydra_help:
        raise ConfigError("--shell-completion, --hydra-help: kfx does not offer them; see kfx run --help")
    if parsed.multirun and (parsed.cfg is not None or parsed.info or parsed.run):
        raise ConfigError("--cfg, --info, --run: are of one config; leave out -m, and give each key one value")
    overrides = list(config.combinations(parsed.overrides, parsed.multirun))
    composed = [config.composed(each, parsed.config_dir) for each in overrides]
    jobs = [config.check(raw) for raw in composed]
    if parsed.cfg is not None or parsed.info:
        return _hand_over(words)

    from kfx import build, preflight
    from kfx.identity import identity

    preflight.check(jobs)
    try:
        shared = config.composed(config.without_sweeps(parsed.overrides), parsed.config_dir).hydra
    except ConfigError as error:
        raise ConfigError(
            f"{error} (Hydra composes a sweep without its swept groups first: give a key that only they have as "
            "a sweep too, key=choice(value))"
        ) from error
    config.check_hydra(shared)  # what Hydra starts the sweep from: no job need have seen it
    if parsed.multirun:
        config.check_subfolders([raw.hydra for raw in composed])
    key = "sweep" if parsed.multirun else "run"
    folder = Path(config.text_at(shared, f"{key}.dir"))
    preflight.check_disk(jobs, folder)
    preflight.make_folder(f"hydra.{key}.dir", folder, resume=jobs[0].resume)
    words = [*words, f"hydra.{key}.dir={config.quoted(str(folder))}"]  # the time in its name must not pass on
    if not parsed.multirun:
        return _hand_over(words)
    if shared.sweeper._target_ != _BASIC_SWEEPER:  # it draws its own jobs while it runs
        return _sweep(words, folder, None)
    identities = [identity(raw, build.data_checksums(job.dataset)) for raw, job in zip(composed, jobs, strict=True)]
    return _sweep(words, folder, list(zip(overrides, identities, strict=True)))


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}; see kfx run --help")


_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


def _sweep(words: list[str], folder: Path, jobs: list[tuple[list[str], str]] | None) -> int:
    """Run the jobs, or those that a sweeper draws; whatever stops them, `sweep.csv` says what became of each."""
    from rich.console import Console

    from kfx import sweep
    from kfx.job import search_roots
    from kfx.outcomes import Status

    sweep.write(folder / "sweep.csv", sweep.rows(jobs or [], []))
    try:
        code = _hand_over(words, len(jobs or []))
    finally:
        rows = sweep.rows(sweep.jobs_in(folder) if jobs is None else jobs, search_roots(folder))
        sweep.write(folder / "sweep.csv", rows)
        Console(stderr=True, width=None if sys.stderr.isatty() else 140).print(sweep.table(rows))
        print(f"kfx: {folder / 'sweep.csv'}", file=sys.stderr)
    return code if all(row["status"] == Status.COMPLETED for row in rows) else max(code, 1)


def _hand_over(words: list[str], jobs: int = 1) -> int:
    """Let Hydra compose again, make the directories and start the jobs; `jobs`: how many, as far as is known."""
    import hydra
    from omegaconf import DictConfig

    from kfx import config, launcher
    from kfx.job import start

    codes = [0]

    def job(raw: DictConfig) -> float | None:
        code, loss = start(raw, jobs)
        codes.append(code)
        return loss

    config.register_resolvers()
    launcher.register()
    entry = hydra.main(version_base="1.3", config_path=str(config.config_folder()), config_name="config")(job)
    before = sys.argv
    sys.argv = ["kfx run", *words]
    try:
        entry()
    finally:
        sys.argv = before
    return max(codes)


# ---- runs that exist


def _resume(directory: Path) -> int:
    from kfx.run import resume

    return resume(directory)


def _rerun(directory: Path, output: Path | None, tolerance: float) -> int:
    import time

    from kfx import compare, config
    from kfx.record import load_run
    from kfx.run import run

    if not (directory / "config.yaml").is_file() or not (directory / "metrics.json").is_file():
        raise ConfigError(f"{directory}: holds no run to repeat")
    if not 0 <= tolerance < 1:
        raise ConfigError(f"--tolerance {tolerance:g}: expected a number from 0 to below 1")
    recorded = load_run(directory)
    raw = recorded.config
    config.check(raw)
    repeated = output or directory.with_name(f"{directory.name}_rerun_{time.strftime('%Y-%m-%d_%H-%M-%S')}")
    code = run(raw, repeated)
    if code:
        return code
    same, line = compare.same_results(recorded, load_run(repeated), tolerance)
    print(f"{'the same' if same else 'DIFFERENT'}: {line}")
    return 0 if same else 1


def _compare(parsed: argparse.Namespace) -> int:
    from rich.console import Console

    from kfx import compare

    by = parsed.by.split(",")
    if parsed.figure is not None:
        compare.check_picture_name(parsed.figure)
    runs, left_out = compare.collect(parsed.paths, parsed.metric, parsed.kernel, parsed.n_interpolation)
    if not runs:
        more = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        raise ConfigError(f"kfx compare: no run to show: {left_out[0]}{more}")
    for line in left_out:
        print(f"kfx: left out: {line}", file=sys.stderr)
    frame = compare.table(runs, by, parsed.metric, parsed.mix)
    Console(width=None if sys.stdout.isatty() else 180).print(compare.screen(frame, by, parsed.metric))
    for path, write in (
        (parsed.csv, lambda path: frame.to_csv(path, index=False)),
        (parsed.latex, lambda path: path.write_text(compare.latex(frame, by, parsed.metric))),
        (parsed.figure, lambda path: compare.picture(frame, by, parsed.metric).savefig(path)),
    ):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)
            print(path)
    return 0


# ---- list, data, gram


def _plot(directories: Sequence[Path], formats: Sequence[str]) -> int:
    from kfx import plots
    from kfx.outcomes import KfxError
    from kfx.schema import FORMATS

    if not set(formats) <= set(FORMATS):
        raise ConfigError(f"--format {','.join(formats)}: expected {', '.join(FORMATS)}, or several with commas")
    code = 0
    for directory in directories:
        try:
            if not (directory / "metrics.json").is_file():
                raise ConfigError(f"kfx plot {directory}: holds no run")
            for path in plots.draw(directory, formats):
                print(path)
        except KfxError as error:  # the others are drawn all the same
            print(f"kfx: {' '.join(str(error).split())}", file=sys.stderr)
            code = max(code, error.exit_code)
        except Exception as error:  # what is in a damaged record is anybody's guess
            print(f"kfx: {directory}: its record is damaged ({type(error).__name__}: {error})", file=sys.stderr)
            code = max(code, 1)
    return code


def _animate(directory: Path, output: Path | None, seconds: float) -> int:
    from matplotlib.animation import FFMpegWriter

    from kfx.plots import flow
    from kfx.progress import Steps
    from kfx.record import RecordError, load_run

    if not (directory / "metrics.json").is_file():
        raise ConfigError(f"kfx animate {directory}: holds no run")
    if not seconds > 0:
        raise ConfigError(f"--seconds {seconds:g}: expected a number > 0")
    usual = ".mp4" if FFMpegWriter.isAvailable() else ".gif"
    path = output or directory / "figures" / f"flow{usual}"
    if path.suffix not in (".mp4", ".gif"):
        raise ConfigError(f"--output {path}: expected a name that ends in .mp4 or .gif")
    if path.suffix == ".mp4" and usual == ".gif":
        raise ConfigError(f"--output {path}: MP4 needs ffmpeg, which is not here; write a .gif")
    run = load_run(directory)
    try:
        shown = flow.snapshots(run)
    except Exception as error:
        raise RecordError(f"{directory}: a snapshot is damaged ({type(error).__name__}: {error})") from error
    if len(shown) < 2 or shown[0][1][0].size > 2:
        raise ConfigError(f"kfx animate {directory}: takes a flow in one or two dimensions with flow.snapshots above 0")
    path.parent.mkdir(parents=True, exist_ok=True)
    with Steps("film", len(shown)) as steps:
        flow.animate(run, path, seconds, steps.advance)
    print(path)
    return 0


def _list(group: str | None, names: bool, smoke: bool, words: Sequence[str] = (), config_dir: str | None = None) -> int:
    from kfx.config import GROUPS, description, options

    if group is not None and group not in GROUPS:
        raise ConfigError(f"kfx list {group}: unknown group; it takes {', '.join(GROUPS)}")
    for name in ["experiment"] if smoke else [group] if group else GROUPS:
        described = {o: description(name, o, config_dir) for o in options(name, config_dir)}
        found = {
            option: text
            for option, text in described.items()
            if (not smoke or option.endswith("_smoke") or option.startswith("smoke/"))
            and all(word.lower() in f"{option} {text}".lower() for word in words)
        }
        width = max(map(len, found), default=0)
        if words and not found:
            raise ConfigError(f"kfx list {name} {' '.join(words)}: no such option; kfx list {name} shows all")
        if not names:
            print(f"{name}")
        for option, text in found.items():
            print(option if names else f"  {option:<{width}}  {text}".rstrip())
    return 0


def _data(action: str, datasets: Sequence[str]) -> int:
    from kfx.data.files import FILES, cache_folder, digest, locate

    for name in datasets:
        if name not in FILES:
            raise ConfigError(f"kfx data {action} {name}: unknown data set; it takes {', '.join(FILES)}")
    print(cache_folder())
    failed = 0
    for dataset in datasets or FILES:
        for name, file in FILES[dataset].items():
            path = cache_folder() / file.path
            if action == "fetch":
                locate(dataset, name)
            if not path.is_file():
                state, failed = "missing", failed + (action == "verify")
            elif action == "where":
                state = f"{path.stat().st_size} bytes"
            elif digest(path, "md5") == file.md5:
                state = "as published"
            else:
                state = "not the published file"
                failed += action == "verify"
            print(f"  {file.path:<48}  {state}")
    return 1 if failed else 0


def _precision(allow_tf32: bool, output: Path) -> int:
    from rich.console import Console

    from kfx import precision, preflight
    from kfx.disk import write_json
    from kfx.plots.precision import error_against_size

    preflight.make_folder("--output", output, resume=True)
    switches = precision.set_switches(allow_tf32)
    verdicts = precision.measure(precision.arithmetics(("torch", "jax")))
    content = precision.report(verdicts, switches)
    Console(width=120 if not sys.stdout.isatty() else None).print(precision.table(content))
    for name, value in switches.items():
        print(f"  {name} = {value}")
    if not content["gpu"]:
        print("  no GPU is visible to torch or JAX: the CPU alone was measured")
    write_json(output / "precision.json", content)
    error_against_size(content).savefig(output / "precision.png")
    print(f"  {output / 'precision.json'}, {output / 'precision.png'}")
    return 0 if all(verdict.keeps_promise for verdict in verdicts) else 1


def _gram(overrides: Sequence[str], output: Path, test: bool, block: int) -> int:
    from kfx import config, preflight
    from kfx.gram import save

    if block < 1:
        raise ConfigError(f"--block {block}: expected a whole number >= 1")
    unused = [
        "sampler.batch_size=null",
        "evaluation.n_interpolation=[1]",
        "optimizer=none",
    ]  # a Gram needs none of these
    settings = config.load([*unused, *overrides])
    preflight.check([settings])
    preflight.make_folder("--output", output, resume=True)
    for path in save(settings, output, test, block):
        print(path)
    return 0
