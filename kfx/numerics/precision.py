"""Measurements of the precision of products and convolutions on this machine's devices."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from kfx.documents import read_document
from kfx.outcomes import ConfigError, KfxError, RecordError

if TYPE_CHECKING:
    import jax

SIZES = tuple(range(100, 1001, 100))
VERDICTS = (("float64", 1e-12), ("float32", 1e-5), ("tf32 or float16", 1e-3), ("bfloat16", 1e-2))
BROKEN = "broken"


def pick_device(name: str) -> torch.device:
    """Return the device that a config names; `auto` means CUDA where it is available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


# ---- frameworks to measure


class Arithmetic(Protocol):
    """Products and convolutions by one framework on one device in one dtype, of float64 arrays to float64 arrays."""

    framework: str
    device: str
    dtype: str

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return a @ b, (n, n). a, b: (n, n)."""

    def convolution(self, images: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return a 2-d convolution without padding, (n, outputs, h − k + 1, w − k + 1).

        images: (n, channels, h, w). weights: (outputs, channels, k, k).
        """


class TorchArithmetic:
    """Arithmetic by torch on one of its devices; methods and shapes as in `Arithmetic`."""

    framework = "torch"

    def __init__(self, device: str, dtype: str) -> None:
        self.device, self.dtype = device, dtype

    def _put(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, dtype=getattr(torch, self.dtype), device=self.device)

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (self._put(a) @ self._put(b)).double().cpu().numpy()

    def convolution(self, images: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return torch.nn.functional.conv2d(self._put(images), self._put(weights)).double().cpu().numpy()


class JaxArithmetic:
    """Arithmetic by JAX on one of its devices; methods and shapes as in `Arithmetic`."""

    framework = "jax"

    def __init__(self, device: jax.Device, dtype: str) -> None:
        self._device, self.dtype = device, dtype
        self.device = "cpu" if device.platform == "cpu" else f"cuda:{device.id}"

    def _put(self, array: np.ndarray) -> jax.Array:
        import jax

        return jax.device_put(array.astype(self.dtype), self._device)

    def _of(self, function: Callable[..., jax.Array], *arrays: np.ndarray) -> np.ndarray:
        import jax

        # Without XLA's choice of the fastest GPU program for each size: on an H200 ten sizes took more than a minute.
        options: dict[str, str | bool] = {} if self.device == "cpu" else {"xla_gpu_autotune_level": "0"}
        put = [self._put(array) for array in arrays]
        compiled = jax.jit(function).lower(*put).compile(compiler_options=options)
        return np.asarray(compiled(*put), dtype=np.float64)

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self._of(operator.matmul, a, b)

    def convolution(self, images: np.ndarray, weights: np.ndarray) -> np.ndarray:
        import jax

        return self._of(partial(jax.lax.conv_general_dilated, window_strides=(1, 1), padding="VALID"), images, weights)


def arithmetics(frameworks: Sequence[str]) -> list[Arithmetic]:
    """Return an `Arithmetic` for each device that the frameworks, `torch` and `jax`, see, in float32 and float64."""
    found: list[Arithmetic] = []
    for dtype in ("float32", "float64"):
        if "torch" in frameworks:
            names = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
            found += [TorchArithmetic(name, dtype) for name in names]
        if "jax" in frameworks:
            import jax

            jax.config.update("jax_enable_x64", True)
            seen = jax_devices()
            devices = [*jax.devices("cpu")[:1], *(d for d in seen if d.platform == "gpu")]
            found += [JaxArithmetic(device, dtype) for device in devices]
    return sorted(found, key=lambda a: (a.framework != "torch", a.device, a.dtype))


def jax_devices() -> list[jax.Device]:
    """Return JAX's devices. Raises ConfigError where JAX finds none, for example for an unknown JAX_PLATFORMS."""
    import jax

    try:
        return jax.devices()
    except RuntimeError as error:
        chosen = os.environ.get("JAX_PLATFORMS")
        said = " ".join(str(error).split())
        raise ConfigError(f"JAX_PLATFORMS={chosen}: JAX says: {said}; leave the variable out") from error


# ---- verdicts


@dataclass(frozen=True)
class Verdict:
    """Measured errors of one device in one dtype.

    products: size → relative Frobenius error of a product of two random matrices, against float64 on the CPU.
    distances: size → absolute Frobenius error of the same product (Khalid 2022, Figs. 3.4 and 3.5).
    convolution: the relative error of one 7 × 7 conv2d.
    name: the class of arithmetic that has errors of this size, see `classify`.
    """

    framework: str
    device: str
    dtype: str
    products: dict[int, float]
    distances: dict[int, float]
    convolution: float
    name: str

    @property
    def largest_error(self) -> float:
        return max(*self.products.values(), self.convolution)

    @property
    def keeps_promise(self) -> bool:
        """Whether the arithmetic is as precise as its dtype says."""
        return _rank(self.name) <= _rank(self.dtype)


def _rank(name: str) -> int:
    names = [verdict for verdict, _ in VERDICTS]
    return names.index(name) if name in names else len(names)


def classify(error: float) -> str:
    """Return the class of arithmetic, see `VERDICTS`, that has relative errors of this size; `broken` for NaN."""
    return next((name for name, bound in VERDICTS if error < bound), BROKEN)


@cache
def of_this_process(frameworks: tuple[str, ...], switches: str) -> list[Verdict]:
    """Return the verdicts on each framework's arithmetic, which a process measures once under the same switches.

    Without a GPU, whose larger products may be other programs, sizes up to 400 tell: the others take half a second.
    """
    candidates = arithmetics(frameworks)
    return measure(candidates, [n for n in SIZES if n <= 400 or any(each.device != "cpu" for each in candidates)])


def measure(candidates: Iterable[Arithmetic], sizes: Sequence[int] = SIZES) -> list[Verdict]:
    """Return a verdict on each candidate, from products and convolutions of the same random numbers.

    sizes: numbers of rows of the square matrices to multiply.
    """
    rng = np.random.default_rng(0)
    pairs = {n: (rng.standard_normal((n, n)), rng.standard_normal((n, n))) for n in sizes}
    products = {n: a @ b for n, (a, b) in pairs.items()}
    images, weights = rng.standard_normal((8, 3, 28, 28)), rng.standard_normal((16, 3, 7, 7))
    windows = np.lib.stride_tricks.sliding_window_view(images, (7, 7), axis=(2, 3))
    convolved = np.einsum("nchwij,ocij->nohw", windows, weights, optimize=True)
    verdicts = []
    for candidate in candidates:
        distances = {n: float(np.linalg.norm(candidate.product(a, b) - products[n])) for n, (a, b) in pairs.items()}
        errors = {n: distance / float(np.linalg.norm(products[n])) for n, distance in distances.items()}
        of_convolution = _error(candidate.convolution(images, weights), convolved)
        largest = max(*errors.values(), of_convolution) if np.all(np.isfinite([*errors.values()])) else np.nan
        name = classify(largest if np.isfinite(of_convolution) else np.nan)
        of = candidate.framework, candidate.device, candidate.dtype
        verdicts.append(Verdict(*of, errors, distances, of_convolution, name))
    return verdicts


def _error(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


# ---- checks and reports


class ImpreciseError(KfxError):
    """The device is less precise than its dtype promises, and the config refuses such a device."""


def complaint(verdicts: Sequence[Verdict], device: torch.device, dtype: str, allow_tf32: bool) -> str | None:
    """Return one line, with the setting to change, if the device is less precise than `dtype` promises, else None."""
    for verdict in verdicts:
        if verdict.device.split(":")[0] != device.type or verdict.dtype != dtype or verdict.keeps_promise:
            continue
        if allow_tf32 and verdict.name == "tf32 or float16":
            remedy = "set device.allow_tf32=false"
        elif dtype == "float32":
            also = "" if device.type == "cpu" else ", or device=cpu; look for a newer driver"
            remedy = f"set device.dtype=float64{also}"
        else:
            remedy = "use another device: its float64 cannot be trusted"
        return (
            f"{verdict.framework} on {verdict.device} in {dtype} delivers {verdict.name} "
            f"(relative error {verdict.largest_error:.1e}): {remedy}"
        )
    return None


def report(verdicts: Sequence[Verdict], switches: Mapping[str, bool | str | None]) -> dict[str, Any]:
    """Return the content of `precision.json`."""
    return {
        "switches": switches,
        "gpu": any(v.device != "cpu" for v in verdicts),
        "verdicts": [
            {
                "framework": v.framework,
                "device": v.device,
                "dtype": v.dtype,
                "verdict": v.name,
                "keeps_promise": v.keeps_promise,
                "products": v.products,
                "distances": v.distances,
                "conv2d_7x7": v.convolution,
            }
            for v in verdicts
        ],
    }


_VERDICT = {
    **dict.fromkeys(("framework", "device", "dtype", "verdict"), "text"),
    "keeps_promise": "true or false",
    "products": "a number for each size",
    "distances": "a number for each size",
    "conv2d_7x7": "a number",
}
_SHAPE = {"machine?": "text", "switches?": {}, "verdicts": (_VERDICT,)}


def read(paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return the contents of several `precision.json` by the name of the machine measured.

    The name ends in `with TF32` where TF32 was allowed. Raises RecordError for a file of another kind.
    """
    found: dict[str, dict[str, Any]] = {}
    for resolved, path in {each.resolve(): each for each in paths}.items():
        content = read_document(path, _SHAPE, "is not a precision.json of kfx")
        if not content["verdicts"]:
            raise RecordError(f"{path}: is not a precision.json of kfx: nothing was measured")
        name = str(content.get("machine") or resolved.parent.name)
        name += " with TF32" if any(value is True for value in content.get("switches", {}).values()) else ""
        found[name if name not in found else f"{name} ({resolved.parent.name}/{path.name})"] = content
    return found
