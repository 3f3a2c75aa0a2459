"""Run every experiment under its list `smoke`, and every legal pair of options, in two processes; 1 if one fails.

python scripts/smoke.py [FOLDER] [--only WORD] [--processes N]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command does; read when torch is first imported

from kfx.config.plugins import load_plugins, plugged_in
from kfx.experiment.plan import Plan
from kfx.outcomes import KfxError
from kfx.running.story import run

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # of a spawned process too
from tests.smoke_runs import jobs

KINDS = {"+experiment": "experiments", "kernel": "pairs of kernel and optimizer", "study": "runs of studies"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/smoke") / time.strftime("%Y-%m-%d_%H-%M-%S"))
    parser.add_argument("--only", default="", help="jobs whose name holds this")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    started, chosen = time.perf_counter(), [job for job in jobs() if arguments.only in job[0]]
    plugins = [plugin.path for plugin in plugged_in()]  # those of studies
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, context, load_plugins, (plugins,)) as pool:
        under_way = [pool.submit(end_of, job, arguments.folder / str(number)) for number, job in enumerate(chosen)]
        of_kind, good, failed = Counter[str](), Counter[str](), []
        for number, ((name, *_), (code, seconds, said)) in enumerate(
            zip(chosen, ends(under_way), strict=True), start=1
        ):
            kind = KINDS.get(name.partition("=")[0], "other options")
            of_kind[kind] += 1
            good[kind] += code == 0
            print(
                f"{number:>4} of {len(chosen)}  {'FAILED' if code else 'ok':<6}  {seconds:5.1f} s  {name}", flush=True
            )
            if code:
                failed.append(name)
                print(said)
    for kind, count in of_kind.items():
        print(f"{good[kind]} of {count} {kind}")
    print(f"{good.total()} of {len(chosen)} in {time.perf_counter() - started:.0f} s: {arguments.folder}")
    for name in failed:
        print(f"FAILED  {name}", file=sys.stderr)
    if not chosen:
        print(f"FAILED  --only {arguments.only}: is in no name", file=sys.stderr)
    return 1 if failed or not chosen else 0


def end_of(job: tuple[str, list[str], bool], folder: Path) -> tuple[int, float, str]:
    """The exit code of a run, its seconds and what it said."""
    _, words, smoke = job
    began, said = time.perf_counter(), io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = run(Plan.of_words(words, smoke=smoke), folder)
    except Exception as error:  # one defect must not hide the others
        code = 1
        said.write(str(error) if isinstance(error, KfxError) else traceback.format_exc())
    return code, time.perf_counter() - began, said.getvalue()


def ends(under_way: list[Future[tuple[int, float, str]]]) -> Iterator[tuple[int, float, str]]:
    """What each run came to, in their order; of those whose process was killed, that."""
    for future in under_way:
        try:
            yield future.result()
        except BrokenProcessPool as error:
            yield 1, 0.0, str(error)


if __name__ == "__main__":
    sys.exit(main())
