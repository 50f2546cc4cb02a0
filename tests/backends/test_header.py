"""The kernels' header is read alike by the C compiler and by Python; where it were not, nothing would be computed."""

import shutil
import subprocess

import pytest

from sojourn.backends.torch.kernels import compiler, header
from sojourn.errors import ModelError

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
SIZES = compiler.head_sizes(16, 16, 2)


@pytest.mark.parametrize("source", ["decoder", "gradients", "product"])
@pytest.mark.parametrize("real", [[], [compiler.REAL16]], ids=["fp32", "bf16"])
def test_every_source_compiles_without_warnings_and_matches_the_header(source, real):
    """The compiler holds each function's definition against its declaration in the header."""
    flags = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-fsyntax-only", "-fopenmp"]
    if source != "gradients" or not real:  # the trainer's kernel is in fp32 alone
        command = ["cc", *flags, *SIZES, *real, str(compiler.SOURCES / f"{source}.c")]
        assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""
        assert compiler.compiled(source, *SIZES, *real) is not None


@pytest.mark.parametrize(
    ("old", "new", "entry"),
    [
        (
            "int64_t rows, logit_count, pages;",
            "int64_t logit_count, rows, pages;",
            "offsetof(struct Step, logit_count)",
        ),
        ("float norm_eps, attention_scale;", "double norm_eps; float attention_scale;", "sizeof(struct Model)"),
        ("int8_t *block_mask;", "int32_t block_mask;", "sizeof(((struct Tree *)0)->block_mask)"),
        ("QUERY_BLOCK_PANELS = 3", "QUERY_BLOCK_PANELS = 4", "QUERY_BLOCK_PANELS"),
    ],
)
def test_a_difference_between_python_and_c_is_refused(old, new, entry, tmp_path, monkeypatch):
    """Python reads another header than the C sources include."""
    text = header.PATH.read_text()
    assert old in text
    other = header.parsed(text.replace(old, new))
    monkeypatch.setattr(header, "header", lambda: other)
    monkeypatch.setenv("SOJOURN_CACHE", str(tmp_path))
    compiler.compiled.cache_clear()
    with pytest.raises(ModelError, match=r"does not match kernels\.h") as failure:
        compiler.compiled("product")
    assert f"{entry} is " in str(failure.value)
    assert "delete the file" in str(failure.value)


def test_python_must_name_the_fields_that_c_has():
    with pytest.raises(KeyError, match="kept"):
        header.header().new("struct Step *", {"kept": 1})


def test_numbers_and_structures_are_not_taken_for_each_other():
    library = compiler.compiled("decoder", *SIZES)
    step = header.header().new("struct Step *")
    with pytest.raises(TypeError, match="Model"):
        library.decoder_forward(step, step, 1)
    with pytest.raises(TypeError, match=r"int|float"):
        library.panel_width(1)
