"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100 from their original files, read without trusting their content."""

from __future__ import annotations

import gzip
import io
import pickle
import pickletools
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kfx.data.dataset import Dataset, classification, of_classes
from kfx.data.files import locate, warn_of_unpublished
from kfx.data.splits import take
from kfx.outcomes import DataError

_MOST_IMAGES = 100_000
_MOST_BATCH_BYTES = 256 << 20
_MOVED_AT_ONCE = 1000


def idx_dataset(
    dataset: str,
    n_train: int | None,
    n_test: int | None,
    classes: Sequence[int] | None,
    rng: np.random.Generator,
    within: tuple[int, int] | None = None,
    test_on_rest: bool = False,
) -> Dataset:
    """`mnist` or `fashion_mnist`: (n, 1, 28, 28) in [0, 1]; random subsets of the official parts.

    classes: which of the ten; None for all. within: first and last of the training images to train on.
    test_on_rest: test on the other training images, instead of the test images.
    """
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    used: list[str] = []
    for wanted, key in ((n_train, "n_train"), (n_test, "n_test")):
        of_training_file = key == "n_train" or test_on_rest
        prefix = "train" if of_training_file else "t10k"
        names = [f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"]
        image_path, label_path = (locate(dataset, name) for name in names)
        used += names
        images, labels = _images(image_path, image_path.stat().st_mtime_ns), read_idx(label_path, ())
        if len(images) != len(labels) or labels.max(initial=0) > 9:
            raise DataError(f"{label_path}: expected {len(images)} labels from 0 to 9, as many as images")
        pool = of_classes(labels, classes)
        if of_training_file and within is not None:
            inside = (pool >= within[0]) & (pool <= within[1])
            pool = pool[inside if key == "n_train" else ~inside]
        chosen = pool[take(key, len(pool), wanted, rng)]
        parts.append((images[chosen, None] / 255.0, labels[chosen].astype(int)))
    warn_of_unpublished(dataset, used)
    return classification(dataset, parts, classes)


def with_moved_copies(data: Dataset, copies: int, shift: float, rotation: float, rng: np.random.Generator) -> Dataset:
    """Add after the training images so many copies of each, all once and then again, each moved at random.

    shift: largest shift along each axis, in pixels. rotation: largest angle, in degrees. Both are uniform; pixels are
    interpolated linearly, and those from outside are like the nearest at the border.
    """
    count = len(data.x_train)
    x = np.repeat(data.x_train[None], 1 + copies, axis=0).reshape(-1, *data.x_train.shape[1:])
    for start in range(count, len(x), _MOVED_AT_ONCE):
        x[start : start + _MOVED_AT_ONCE] = _moved(x[start : start + _MOVED_AT_ONCE], shift, rotation, rng)
    labels = None if data.labels_train is None else np.tile(data.labels_train, 1 + copies)
    return replace(data, x_train=x, y_train=np.tile(data.y_train, (1 + copies, 1)), labels_train=labels)


def _moved(images: np.ndarray, shift: float, rotation: float, rng: np.random.Generator) -> np.ndarray:
    """images: (n, channels, side, side)."""
    import torch
    from torch.nn.functional import affine_grid, grid_sample

    angle = np.deg2rad(rng.uniform(-rotation, rotation, len(images)))
    right, down = 2 * rng.uniform(-shift, shift, (2, len(images))) / images.shape[-1]  # the image has the side 2
    maps = np.array([[np.cos(angle), -np.sin(angle), right], [np.sin(angle), np.cos(angle), down]])
    points = affine_grid(torch.from_numpy(maps.transpose(2, 0, 1)), list(images.shape), align_corners=False)
    moved: np.ndarray = grid_sample(
        torch.from_numpy(images), points, padding_mode="border", align_corners=False
    ).numpy()  # fmt: skip
    return moved


def cifar10(
    n_train: int | None,
    n_test: int | None,
    batches: Sequence[int],
    classes: Sequence[int] | None,
    rng: np.random.Generator,
) -> Dataset:
    """CIFAR-10: (n, 3, 32, 32), channels first, scaled to [−1, 1] (mean 0.5, deviation 0.5, as Khalid 2022).

    batches: which of the five training files to read. classes: which of the ten; None for all.
    """
    return _of_cifar("cifar10", [f"data_batch_{i}" for i in batches], ["test_batch"], 10, n_train, n_test, classes, rng)


def cifar100(
    n_train: int | None, n_test: int | None, classes: Sequence[int] | None, rng: np.random.Generator
) -> Dataset:
    """CIFAR-100 with its hundred fine labels: (n, 3, 32, 32), scaled as `cifar10`. classes: which; None for all."""
    return _of_cifar("cifar100", ["train"], ["test"], 100, n_train, n_test, classes, rng)


def _of_cifar(
    name: str,
    train: Sequence[str],
    test: Sequence[str],
    count: int,
    n_train: int | None,
    n_test: int | None,
    classes: Sequence[int] | None,
    rng: np.random.Generator,
) -> Dataset:
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for files, wanted, key in ((train, n_train, "n_train"), (test, n_test, "n_test")):
        paths = [locate(name, file) for file in files]
        read = [_cifar(path, path.stat().st_mtime_ns, count) for path in paths]
        images, labels = np.concatenate([r[0] for r in read]), np.concatenate([r[1] for r in read])
        pool = of_classes(labels, classes)
        chosen = pool[take(key, len(pool), wanted, rng)]
        parts.append(((images[chosen] / 255.0 - 0.5) / 0.5, labels[chosen]))
    warn_of_unpublished(name, [*train, *test])
    return classification(name, parts, classes, count)


@lru_cache(maxsize=8)
def _images(path: Path, modified: int) -> np.ndarray:
    return read_idx(path, (28, 28))


@lru_cache(maxsize=8)
def _cifar(path: Path, modified: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    return read_cifar_batch(path, classes)


def read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Read a gzipped IDX file of unsigned bytes, (n, *shape); DataError if its header does not fit its content."""
    header_size, again = 8 + 4 * len(shape), f"delete it and run `kfx data fetch {path.parent.name}`"
    try:
        with gzip.open(path) as stream:
            header = stream.read(header_size)
            numbers = np.frombuffer(header[: len(header) // 4 * 4], ">u4")
            if len(header) < header_size or numbers[0] != 0x0801 + len(shape) or tuple(numbers[2:]) != shape:
                what = f"not an IDX file of unsigned bytes with items of {shape or 'one byte'}"
                raise DataError(f"{path}: {what}; {again}")
            count = int(numbers[1])
            if not 0 < count <= _MOST_IMAGES:
                raise DataError(f"{path}: its header promises {count} items; at most {_MOST_IMAGES} are read; {again}")
            expected = count * int(np.prod(shape))
            content = stream.read(expected + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: broken gzip file ({error}); {again}") from error
    if len(content) != expected:
        held = f"{len(content)} bytes" if len(content) < expected else "more"
        raise DataError(f"{path}: its header promises {expected} bytes of items, it holds {held}; {again}")
    return np.frombuffer(content, np.uint8).reshape(count, *shape)


class _ArraysOnly(pickle.Unpickler):
    """Admits NumPy's array and dtype, and plain containers; any other name is an error."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _empty_array
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return _plain_dtype
        raise DataError(f"the pickle asks for {module}.{name}; a CIFAR batch needs only numpy arrays")


def _refuse_large_memo(raw: bytes) -> None:
    # The unpickler allocates as many entries as a memo index says: nine bytes can make it take gigabytes.
    for opcode, argument, _ in pickletools.genops(raw):
        if opcode.name.endswith("PUT") and int(argument or 0) > len(raw):
            raise DataError("the pickle's memo index is larger than the file")


def _empty_array(kind: type, shape: tuple[int, ...], code: bytes) -> np.ndarray:
    # NumPy pickles every array as an empty one followed by its state: any other shape would only take memory.
    if kind is not np.ndarray or tuple(shape) != (0,):
        raise DataError("the pickle builds an array in a way that numpy does not")
    return np.ndarray((0,), np.int8)


def _plain_dtype(name: str | bytes, *arguments: object) -> np.dtype:
    kind = np.dtype(name.decode() if isinstance(name, bytes) else name)
    if kind.kind not in "uib":
        raise DataError(f"the pickle holds an array of {kind}; a CIFAR batch holds bytes")
    return kind


def read_cifar_batch(path: Path, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Read images (n, 3, 32, 32), unsigned bytes, and labels (n,) from one file of CIFAR-10 or CIFAR-100 (fine
    labels)."""
    if path.stat().st_size > _MOST_BATCH_BYTES:
        raise DataError(f"{path}: {path.stat().st_size} bytes are too many for a CIFAR batch")
    try:
        raw = path.read_bytes()
        _refuse_large_memo(raw)
        content = _ArraysOnly(io.BytesIO(raw), encoding="latin1").load()
        images, listed = content["data"], content["labels" if classes == 10 else "fine_labels"]
        if type(listed) is not list or len(listed) > _MOST_IMAGES or any(type(label) is not int for label in listed):
            raise DataError("its labels are no plain list of numbers")  # lists in lists can grow without end
        labels = np.asarray(listed)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except Exception as error:  # a broken pickle can raise anything
        raise DataError(f"{path}: not a CIFAR-{classes} python batch ({type(error).__name__}: {error})") from error
    if (
        not isinstance(images, np.ndarray)
        or images.dtype != np.uint8
        or images.ndim != 2
        or images.shape[1] != 3072
        or labels.shape != images.shape[:1]
        or labels.dtype.kind not in "iu"
        or not 0 <= labels.min(initial=0) <= labels.max(initial=0) < classes
    ):
        raise DataError(f"{path}: expected n × 3072 bytes and n labels from 0 to {classes - 1}")
    return images.reshape(-1, 3, 32, 32), labels.astype(int)
