"""Run every experiment under its list `smoke`, and every legal pair of options, in one process; 1 if one fails.

python scripts/smoke.py [FOLDER] [--only WORD]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
import traceback
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command does; read when torch is first imported

from kfx.experiment.plan import Plan
from kfx.jobs.smoke import jobs
from kfx.outcomes import KfxError
from kfx.running.story import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/smoke") / time.strftime("%Y-%m-%d_%H-%M-%S"))
    parser.add_argument("--only", default="", help="jobs whose name holds this")
    arguments = parser.parse_args()
    started, failed, chosen = time.perf_counter(), 0, [job for job in jobs() if arguments.only in job[0]]
    for number, (name, words, smoke) in enumerate(chosen, start=1):
        began, said = time.perf_counter(), io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = run(Plan.of_words(words, smoke=smoke), arguments.folder / str(number - 1))
        except Exception as error:  # one defect must not hide the others
            code = 1
            said.write(str(error) if isinstance(error, KfxError) else traceback.format_exc())
        failed += code != 0
        state = "ok" if code == 0 else "FAILED"
        print(f"{number:>4} of {len(chosen)}  {state:<6}  {time.perf_counter() - began:5.1f} s  {name}", flush=True)
        if code:
            print(said.getvalue())
    print(f"{len(chosen) - failed} of {len(chosen)} in {time.perf_counter() - started:.0f} s: {arguments.folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
