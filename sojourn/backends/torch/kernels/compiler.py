"""Compiles the C sources of the kernels for this machine, once for each shape of a model, and caches the libraries."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sojourn.backends.torch.kernels import header
from sojourn.backends.torch.kernels.cache import PAGE

SOURCES = Path(__file__).parent
# These are the parts of -ffast-math that keep infinities and NaN. The flag itself would also link code that makes the
# whole process round denormal numbers to 0.
ROUNDING = ["-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math", "-freciprocal-math"]
FLAGS = ["-O3", "-fPIC", *ROUNDING]
NATIVE = ("-march=native", "-mcpu=native")
REAL16 = "-DREAL16"  # `real` in the sources is bf16


def head_sizes(key: int, value: int, repeats: int) -> list[str]:
    """Returns the compiler's options for heads whose keys and values are of these sizes, `repeats` query heads for each
    key head."""
    sizes = {"KEY": key, "VALUE": value, "REPEATS": repeats, "PAGE": PAGE}
    return [f"-D{name}={size}" for name, size in sizes.items()]


class Attempt(NamedTuple):
    """The library of a source, or None and a clause that says why there is none and what to do."""

    library: Any
    failure: str = ""


@cache
def compiled(source: str, *defines: str) -> Any:
    """Returns the library of `source`.c, from the cache or compiled now, or None where that cannot be done here."""
    return _attempt(source, *defines).library


def failure() -> str:
    """Returns why no kernel can be compiled here and what to do; nothing where one can."""
    return _attempt("product").failure


def _attempt(source: str, *defines: str) -> Attempt:
    from sojourn.backends.torch.models.gguf import cache_folder

    name = os.environ.get("CC", "cc")
    compiler = shutil.which(name)
    if compiler is None:
        return Attempt(None, f"there is no C compiler '{name}': install gcc or clang, or name one in CC")
    unit = f'#include "{SOURCES / source}.c"\n{header.layout_source()}'
    inputs = [
        unit,
        *(path.read_text() for path in sorted(SOURCES.glob("*.[ch]"))),
        *FLAGS,
        *defines,
        compiler,
        platform.machine(),
        _processor_features(),
        torch.__version__,
    ]
    digest = hashlib.sha256("\n".join(inputs).encode()).hexdigest()[:16]
    path = cache_folder() / "kernels" / f"{digest}.so"
    openmp()
    failed = ""
    for threads in (["-fopenmp"], []):
        try:
            if not path.exists():
                build(compiler, unit, [*FLAGS, *defines, *threads], path)
            return Attempt(header.open_library(path))
        except subprocess.SubprocessError as error:  # no OpenMP here, or no compiler that works
            failed = f"the C compiler '{compiler}' fails ({_first_error(error)}): mend it, or name another one in CC"
        except OSError as error:
            failed = f"{error}: let libraries be written to and run from {path.parent}, or name another folder in "
            failed += "SOJOURN_CACHE"
        path = path.with_name(f"{digest}-serial.so")
    return Attempt(None, failed)


def _first_error(error: subprocess.SubprocessError) -> str:
    """Returns the first error message of a compiler that failed, on one line."""
    lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").splitlines()
    errors = [line for line in lines if "error" in line.lower()] or lines or [str(error)]
    return errors[0].strip()[:200]


def build(compiler: str, unit: str, options: Sequence[str], path: Path) -> None:
    """Compiles and links in two steps, and leaves OpenMP's functions undefined, so that those of the runtime which
    torch has loaded are used."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        source, compiled_object, linked = (Path(folder) / f"kernel{suffix}" for suffix in (".c", ".o", ".so"))
        source.write_text(unit)
        native = next((flag for flag in NATIVE if _accepts(compiler, flag)), None)
        command = [compiler, *options, *([native] if native else []), "-c", str(source), "-o", str(compiled_object)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        link = [compiler, "-shared", str(compiled_object), "-lm", "-o", str(linked)]
        subprocess.run(link, check=True, capture_output=True)
        os.replace(linked, path)


def _accepts(compiler: str, flag: str) -> bool:
    command = [compiler, flag, "-fsyntax-only", "-x", "c", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _processor_features() -> str:
    """Returns the features of this processor, on which the machine code depends: several machines may share a cache
    folder."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


@cache
def openmp() -> Any:
    """Returns the OpenMP runtime that torch computes with, or None, and makes its symbols visible to the kernels: two
    runtimes would compete for the cores. Other packages of the process may have loaded another one."""
    function = getattr(loaded_library("libtorch_cpu"), "omp_get_max_threads", None)  # looked up in what torch links to
    if function is None:
        return None
    address = ctypes.cast(function, ctypes.c_void_p).value
    path = next((path for span, path in _loaded() if address in span), None)
    return None if path is None else ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def loaded_library(name: str) -> Any:
    """Returns the first library of this process whose path contains the name, or None."""
    return next((ctypes.CDLL(path) for _, path in _loaded() if name in path), None)


def _loaded() -> Iterator[tuple[range, str]]:
    """Yields the addresses and the path of each part of a file that this process has in memory."""
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else []:
        (begin, end), path = line.split(maxsplit=1)[0].split("-"), line.partition("/")[2]
        if path:
            yield range(int(begin, 16), int(end, 16)), f"/{path}"
