"""Files that a person names for a result: never a file of a record or store, and a pipe stays a pipe."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kfx.files import whole_path
from kfx.outcomes import ConfigError, Status
from kfx.record.search import metrics_in

_OF_SWEEP = ("sweep.csv", "multirun.yaml")


def require_places(places: Mapping[str, Path | None], read: Iterable[Path] = ()) -> None:
    """ConfigError if the file that an option names cannot be written without harm. read: files that the command reads.

    A file lies in no record and no store, is none of those that are read, and no two options name the same.
    """
    named: dict[Path, str] = {}
    for option, path in places.items():
        if path is None or is_stream(path):
            continue
        shown, target = f"{option} {path}", path.resolve()
        if path.is_dir() or path.is_block_device():
            raise ConfigError(f"{shown}: is a {'folder' if path.is_dir() else 'disk'}; expected the name of a file")
        require_no_record(option, target.parent)
        if path.name in _OF_SWEEP and path.exists() and any(path.parent.glob("*/metrics.json")):
            raise ConfigError(f"{shown}: is a file of the sweep; choose another")
        if path.exists() and any(each.exists() and path.samefile(each) for each in read):
            raise ConfigError(f"{shown}: is the file of the rows, or of the run's data; expected another")
        if (other := named.setdefault(target, option)) != option:
            raise ConfigError(f"{shown}: is the file of {other} too; choose another")


def require_no_record(option: str, folder: Path) -> None:
    """ConfigError if a folder that an option names is, or lies in, a record or a store."""
    for each in (folder.resolve(), *folder.resolve().parents):
        kind = "run" if _holds_run(each) else "store" if _holds_store(each) else None
        if kind is not None:
            raise ConfigError(f"{option} {folder}: lies in the {kind} {each}, whose files are its own; choose another")


def require_place_of_run(folder: Path) -> None:
    """ConfigError if the folder of a new run lies in another run or a store, or holds other runs."""
    require_no_record("the folder of a run", folder.resolve().parent)
    own = (folder / "metrics.json").exists()
    within = () if own else (path.parent for path in folder.glob("*/metrics.json"))
    if other := next((path for path in within if not path.name.startswith("failed-")), None):
        raise ConfigError(f"{folder}: holds the run {other}; choose another folder")


def _holds_run(folder: Path) -> bool:
    """Whether a folder is that of a run, also of one that has just begun or is damaged."""
    if not (folder / "metrics.json").exists():
        return (folder / ".writer.json").exists() and (folder / "history.csv").exists()
    return str(metrics_in(folder).get("status")) in set(Status) or (folder / "history.csv").exists()


def _holds_store(folder: Path) -> bool:
    return (folder / "manifest.json").exists() and (folder / "points").exists()


def is_stream(path: Path) -> bool:
    """Whether a path names a pipe, a device such as /dev/stdout, or the file to which the command prints."""
    try:
        found = path.stat()
    except OSError:
        return False
    of_streams = stat.S_ISFIFO, stat.S_ISCHR, stat.S_ISSOCK
    return any(is_one(found.st_mode) for is_one in of_streams) or _printed_to(found) is not None


def _printed_to(found: os.stat_result) -> int | None:
    """The descriptor of standard output or error, if it is this file."""
    for number in (1, 2):
        try:
            if os.path.samestat(found, os.fstat(number)):
                return number
        except OSError:  # it is closed
            continue
    return None


@contextmanager
def written(option: str, path: Path) -> Iterator[Path]:
    """Yield a path to write to. At the end of the block its content replaces the file that an option names, at once,
    or goes into the pipe or device of that name; after an error nothing has changed."""
    require_places({option: path})
    if not is_stream(path):
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_path(target) as partial:
            yield partial
        return
    with tempfile.TemporaryDirectory() as folder:
        yield (content := Path(folder) / f"content{path.suffix}")
        sys.stdout.flush()
        number = _printed_to(path.stat())
        descriptor = os.open(path, os.O_WRONLY) if number is None else os.dup(number)
        with content.open("rb") as source, os.fdopen(descriptor, "wb") as stream:
            shutil.copyfileobj(source, stream)
