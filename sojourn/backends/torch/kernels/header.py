"""The header that the C sources include and that Python reads with cffi, so that nothing is declared twice.

Every compiled library carries a table of the sizes, offsets and constants that its compiler found in the header.
`open_library` compares it with what cffi found there: a difference would corrupt memory without a sign of it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from cffi import FFI

from sojourn.errors import ModelError

PATH = Path(__file__).with_name("kernels.h")
NUMBERS = re.compile(r"\b(?:const )?(?:float|double|real|int\d+_t) \*")
TABLE = """
#include <stddef.h>
int64_t header_layout(int64_t entry)
{{
    static const int64_t table[] = {{{}}};
    return table[entry];
}}
"""


def parsed(text: str) -> FFI:
    """Parses a header. Pointers to numbers become integers, as `Tensor.data_ptr()` is: making a pointer of each address
    would take longer than a small call does."""
    ffi = FFI()
    ffi.cdef(NUMBERS.sub("intptr_t ", text).replace(", *", ", "))
    return ffi


@cache
def header() -> FFI:
    """Returns the declarations of `kernels.h`."""
    return parsed(PATH.read_text())


@cache
def constants() -> dict[str, int]:
    """Returns the values of the header's enumeration by name."""
    return header().typeof("enum Constants").relements


def layout() -> dict[str, int]:
    """Returns the constants and every structure's sizes and offsets as cffi computes them, by their C expressions."""
    ffi: Any = header()
    entries = dict(ffi.typeof("enum Constants").relements)
    for name in ffi.list_types()[1]:
        struct = ffi.typeof(f"struct {name}")
        entries[f"sizeof(struct {name})"] = ffi.sizeof(struct)
        for field, place in struct.fields:
            entries[f"offsetof(struct {name}, {field})"] = place.offset
            entries[f"sizeof(((struct {name} *)0)->{field})"] = ffi.sizeof(place.type)
    return entries


def layout_source() -> str:
    """Returns the C function that reports the same values as the compiler computes them."""
    return TABLE.format(", ".join(layout()))


def open_library(path: Path) -> Any:
    """Opens a compiled library. Raises `ModelError` where it was compiled from another header than Python reads."""
    library: Any = header().dlopen(str(path))
    for entry, (expression, expected) in enumerate(layout().items()):
        actual = library.header_layout(entry)
        if actual != expected:
            raise ModelError(
                f"the compiled kernel '{path}' does not match {PATH.name}: {expression} is {actual} in it, "
                f"but {expected} as Python reads the header: delete the file, so that it is compiled anew"
            )
    return library
