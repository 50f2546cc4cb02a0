"""The kernels of engine and trainer: pages of C, compiled once for a model's shape by the system's compiler and cached.

Where there is no compiler, or the model is not on the CPU, `load` gives None, and torch does the same, more slowly.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from sojourn.backends.torch.kernels.cache import PAGE, Layer, Shape

SOURCES = {
    name: Path(__file__).with_name(f"{name}.c") for name in ("tile", "kernel", "forward", "gradients", "product")
}
# What -ffast-math allows, but infinities stay what they are, and loading does not change how the process rounds.
ROUNDING = ["-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-freciprocal-math"]
FLAGS = ["-O3", "-fPIC", *ROUNDING]
NATIVE = ("-march=native", "-mcpu=native")
ARGUMENTS: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}
LAYOUTS = {
    "attend": "piipppiiipippiff",
    "store": "piipiippiiip",
    "draw": "piipppp",
    "forward": "ppi",
    "pack": "piipi",
    "panel_size": "",
}
REAL16 = "-DREAL16"  # for the sources: numbers are bf16


class Rows(NamedTuple):
    """Single tokens that attend, each to the first `lengths` tokens of one of the tables."""

    tables: torch.Tensor  # (contexts, pages)
    owners: torch.Tensor  # (R,)
    lengths: torch.Tensor  # (R,)


class Kernel:
    """The compiled functions, for tensors of one shape and kind. Work is split over torch's own threads."""

    def __init__(self, library: Any, shape: Shape, dtype: torch.dtype) -> None:
        self._shape, self.dtype = shape, dtype
        for name, function in vars(functions(library, LAYOUTS, ("panel_size",))).items():
            setattr(self, f"_{name}", function)

    def attend(
        self, layer: Layer, query: torch.Tensor, rows: Rows, scale: float, window: int | None, cap: float | None
    ) -> torch.Tensor:
        """Queries (R, heads, key) to (R, heads, value)."""
        out, query = query.new_empty(len(query), query.shape[1], self._shape.value), query.float()
        self._attend(
            *(query.data_ptr(), query.stride(0), query.stride(1), out.data_ptr()),
            *(layer.keys.data_ptr(), layer.values.data_ptr(), layer.keys.shape[1], len(query), self._shape.kv_heads),
            *(rows.tables.data_ptr(), rows.tables.shape[1], rows.owners.data_ptr(), rows.lengths.data_ptr()),
            *(window or 0, scale, cap or 0.0),
        )
        return out

    def store(self, layer: Layer, key: torch.Tensor, value: torch.Tensor, places: torch.Tensor) -> None:
        """Keys and values (R, kv_heads, head) at their places in the cache."""
        self._store(
            *(key.data_ptr(), key.stride(0), key.stride(1), value.data_ptr(), value.stride(0), value.stride(1)),
            *(layer.keys.data_ptr(), layer.values.data_ptr(), layer.keys.shape[1], len(key), self._shape.kv_heads),
            places.data_ptr(),
        )

    def draw(
        self, logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A token of each row (R, V) of fp32 logits, -1 where they are not finite, and its logprob; by temperatures in
        fp32 and uniform numbers in double precision."""
        tokens, logprobs = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits), dtype=torch.float64)
        given, drawn = (logits, *logits.shape, temperatures, uniforms), (tokens, logprobs)
        self._draw(*(part.data_ptr() if isinstance(part, torch.Tensor) else part for part in (*given, *drawn)))
        return drawn

    def panels(self, outputs: int, inputs: int) -> torch.Tensor:
        """Room for weights as `forward` reads them."""
        size = self._panel_size()
        return torch.zeros(-(-outputs // size), inputs, size, dtype=self.dtype)

    def pack(self, weight: torch.Tensor, panels: torch.Tensor, begin: int) -> None:
        """Puts a weight (outputs, inputs) where the panels' outputs from `begin` on belong."""
        whole = weight.contiguous()
        self._pack(whole.data_ptr(), *whole.shape, panels.data_ptr(), begin)

    def forward(self, model: ctypes.Structure, step: ctypes.Structure) -> None:
        """A whole step, by the structures that forward.c declares."""
        self._forward(ctypes.addressof(model), ctypes.addressof(step), torch.get_num_threads())

    _attend: Any
    _store: Any
    _draw: Any
    _panel_size: Any
    _pack: Any
    _forward: Any


def load(shapes: Sequence[Shape], heads: int, dtype: torch.dtype, device: torch.device) -> Kernel | None:
    """The kernel for a model whose layers are all alike, or None."""
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16) or len(set(shapes)) > 1:
        return None
    shape = shapes[0]
    if dtype == torch.bfloat16 and shape.key % 2:  # which it multiplies in pairs
        return None
    kind = [REAL16] if dtype == torch.bfloat16 else []
    found = built("forward", *defines(shape.key, shape.value, heads // shape.kv_heads), *kind)
    return None if found is None else Kernel(found, shape, dtype)


def struct(integers: Sequence[str], pointers: Sequence[str], floats: Sequence[str] = ()) -> type[ctypes.Structure]:
    """As the sources declare theirs: these before those."""
    kinds = ((integers, ctypes.c_int64), (pointers, ctypes.c_void_p), (floats, ctypes.c_float))
    fields = [(name, kind) for names, kind in kinds for name in names]
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


def functions(library: Any, layouts: Mapping[str, str], numbers: Sequence[str]) -> SimpleNamespace:
    """A library's functions by name, with the letters of their arguments; those in `numbers` return an integer."""
    found = SimpleNamespace()
    for name, layout in layouts.items():
        function = getattr(library, name)
        function.argtypes = [ARGUMENTS[letter] for letter in layout]
        function.restype = ctypes.c_int64 if name in numbers else None
        setattr(found, name, function)
    return found


def defines(key: int, value: int, repeats: int) -> list[str]:
    """The sizes of heads as options of the compiler."""
    sizes = {"KEY": key, "VALUE": value, "REPEATS": repeats, "PAGE": PAGE}
    return [f"-D{name}={size}" for name, size in sizes.items()]


@cache
def built(source: str, *defines: str) -> Any:
    """The compiled source, from the cache or built now; None where that cannot be done here."""
    from sojourn.backends.torch.models.gguf import cache as cache_folder

    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    about = [
        source,
        *(path.read_text() for path in SOURCES.values()),
        *FLAGS,
        *defines,
        compiler,
        platform.machine(),
        _processor(),
        torch.__version__,
    ]
    digest = hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
    path = cache_folder() / "kernels" / f"{digest}.so"
    openmp()
    for threads in (["-fopenmp"], []):
        try:
            if not path.exists():
                _build(compiler, SOURCES[source], [*FLAGS, *defines, *threads], path)
            return ctypes.CDLL(str(path))
        except (OSError, subprocess.SubprocessError):  # no OpenMP here, or no compiler that works
            path = path.with_name(f"{digest}-serial.so")
    return None


def _build(compiler: str, source: Path, options: Sequence[str], path: Path) -> None:
    """Compiles and links in two steps: OpenMP's functions are left open, to be those that torch has loaded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made, linked = Path(folder) / "kernel.o", Path(folder) / "kernel.so"
        native = next((flag for flag in NATIVE if _accepts(compiler, flag)), None)
        command = [compiler, *options, *([native] if native else []), "-c", str(source), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        subprocess.run([compiler, "-shared", str(made), "-lm", "-o", str(linked)], check=True, capture_output=True)
        os.replace(linked, path)


def _accepts(compiler: str, flag: str) -> bool:
    command = [compiler, flag, "-fsyntax-only", "-x", "c", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _processor() -> str:
    """What this processor can do: a cache may be shared by machines."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


@cache
def openmp() -> Any:
    """The OpenMP runtime that torch has loaded, for others to find: two of them would fight for the cores."""
    return loaded("gomp", "libomp", "libiomp", mode=ctypes.RTLD_GLOBAL)


def loaded(*names: str, mode: int = ctypes.DEFAULT_MODE) -> Any:
    """The first library of this process in whose path one of the names stands."""
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else []:
        path = line.partition("/")[2]
        if any(name in path for name in names):
            return ctypes.CDLL(f"/{path}", mode=mode)
    return None


def scratch(size: int) -> torch.Tensor:
    """Memory of this thread for one call of a kernel, kept for the next: what is new the system must find and clear."""
    if getattr(_kept, "scratch", None) is None or len(_kept.scratch) < size:
        _kept.scratch = torch.empty(size)
    return _kept.scratch


_kept = threading.local()
