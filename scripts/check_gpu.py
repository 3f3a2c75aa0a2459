"""Check on one GPU all that needs one, in at most eight minutes: a line for each part, on the screen and in a file.

python scripts/check_gpu.py [--output check_gpu.json] [--only PART …] [--seconds PART=S …] [--cpu]
python scripts/check_gpu.py --record check_gpu.json

Each part is a process with a time limit of its own. One that fails or overruns it leaves what it has measured and does
not stop the others; the exit code is then 1. A part that lacks a package is skipped. --cpu runs the same at tiny sizes,
with Triton's interpreter in place of a GPU. --record adds the file's numbers to docs/gpu.csv, and writes the section
"On a GPU" of docs/performance.md anew; those of --cpu are refused.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from gpu_parts import CPU, GPU, PARTS, ROOT, Numbers, Part, Size, Skipped

HISTORY, PAGE, HEADING = ROOT / "docs" / "gpu.csv", ROOT / "docs" / "performance.md", "\n## On a GPU\n"
COLUMNS = ("version", "date", "card", "part", "what", "value")
SKIPPED = 3  # exit code of a part that lacks a package


# ---- parts as processes


def measure(name: str, size: Size) -> int:
    """Print what a part measures, a JSON object at a time; return its exit code."""

    def tell(numbers: Numbers) -> None:
        print(json.dumps(numbers), file=screen, flush=True)

    screen, (part,) = sys.stdout, [part for part in PARTS if part.name == name]
    with redirect_stdout(sys.stderr):
        from kfx.numerics import process

        process.set_switches(False)
        try:
            for numbers in part.measure(size):
                tell(numbers)
        except Skipped as error:
            tell({"why": str(error)})
            return SKIPPED
        except Exception as error:
            traceback.print_exc()
            tell({"why": " ".join(f"{type(error).__name__}: {error}".split())[:500]})
            return 1
    return 0


def run(part: Part, seconds: float, on_cpu: bool) -> dict[str, Any]:
    """Run a part in a process and return its line. Whatever it has started is killed with it."""
    words = [sys.executable, "-W", "ignore", __file__, "--part", part.name, *(["--cpu"] if on_cpu else [])]
    own = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if on_cpu else {"TRITON_INTERPRET": "0"}
    own |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "GOMP_SPINCOUNT": "1000"}
    # for kfx where it is not installed, and for tests
    own["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    started, status = time.perf_counter(), ""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(words, env=os.environ | own, process_group=0, **pipes)
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        status = "timed out"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    if status:
        out, err = child.communicate()
    numbers: Numbers = {}
    for told in filter(lambda told: told.startswith("{"), out.splitlines()):
        with suppress(ValueError):  # a line that the kill has cut
            numbers |= json.loads(told)
    last = (err.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    why = f"after {seconds:g} s" if status else numbers.pop("why", last)
    status = status or {0: "ok", SKIPPED: "skipped"}.get(child.returncode, "failed")
    line = {"part": part.name, "status": status, "seconds": round(time.perf_counter() - started, 1), "limit": seconds}
    return line | {"numbers": numbers} | ({} if status == "ok" else {"why": why})


def shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


# ---- the record


def record(path: Path) -> None:
    """Add the numbers of a file to the history, and write the page's section anew."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    about = next((line["numbers"] for line in lines if line["part"] == "card"), {})
    if about.get("card", "cpu") == "cpu":
        sys.exit(f"check_gpu: {path}: holds no numbers of a GPU; run the part card, and leave out --cpu")
    new = not HISTORY.exists()
    with HISTORY.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS] if new else [])
        for line in lines:
            found = {what: shown(value) for what, value in line["numbers"].items()}
            found |= {} if line["status"] == "ok" else {line["status"]: line["why"]}
            for what, value in found.items():
                writer.writerow([about["kfx"], about["date"], about["card"], line["part"], what, value])
    PAGE.write_text(page())


def page() -> str:
    """docs/performance.md with the section "On a GPU" from the last record."""
    before, _, rest = PAGE.read_text().partition(HEADING)
    following = rest.find("\n## ")
    return f"{before}{HEADING}\n{section()}" + (rest[following:] if following >= 0 else "")


def section() -> str:
    rows = list(csv.DictReader(HISTORY.read_text().splitlines())) if HISTORY.exists() else []
    start = max((i for i, row in enumerate(rows) if row["what"] == "card"), default=0)
    last = rows[start:]
    text = "`python scripts/check_gpu.py` checks on one card, in at most eight minutes, all that needs one;\n"
    text += "`--record` writes its numbers here:\n\n"
    for part in PARTS:
        text += f"- **{part.name}**: {' '.join(str(part.measure.__doc__).split())}\n"
    if not last:
        return f"{text}\nNot measured: nobody has recorded a card yet.\n"
    table = "".join(f"| {row['part']} | {row['what']} | {row['value'].replace('|', '/')} |\n" for row in last)
    about = f"By `python scripts/check_gpu.py` on {last[0]['card']}, {last[0]['date']}:"
    return f"{text}\n{about}\n\n| part | what | value |\n|---|---|---|\n{table}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [part.name for part in PARTS]
    parser.add_argument("--output", type=Path, default=Path("check_gpu.json"), help="a JSON object a line")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="PART")
    parser.add_argument("--seconds", nargs="+", default=[], metavar="PART=S", help="another time limit of a part")
    parser.add_argument("--cpu", action="store_true", help="the same at tiny sizes, without a GPU")
    parser.add_argument("--record", type=Path, metavar="FILE", help="record a file's numbers, and measure nothing")
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        return measure(arguments.part, CPU if arguments.cpu else GPU)
    if arguments.record:
        record(arguments.record)
        return 0
    limits = {part.name: part.seconds for part in PARTS}
    for word in arguments.seconds:
        name, _, seconds = word.partition("=")
        if name not in limits or not re.fullmatch(r"\d+(\.\d+)?", seconds):
            parser.error(f"--seconds {word}: expected PART=S, as {names[0]}=30; the parts are {', '.join(names)}")
        limits[name] = float(seconds)
    import torch

    if not (arguments.cpu or torch.cuda.is_available()):
        parser.error("torch sees no CUDA device here; --cpu checks the same at tiny sizes")
    good = True
    with arguments.output.open("w") as file:
        for part in PARTS:
            if part.name not in arguments.only:
                continue
            line = run(part, limits[part.name], arguments.cpu)
            file.write(f"{json.dumps(line)}\n")
            file.flush()
            numbers = "; ".join(f"{what} {shown(value)}" for what, value in line["numbers"].items())
            told = "; ".join(filter(None, (line.get("why"), numbers)))
            print(
                f"{part.name:<12} {line['status']:<9} {line['seconds']:>6} of {line['limit']:g} s  {told}", flush=True
            )
            good = good and line["status"] in ("ok", "skipped")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
