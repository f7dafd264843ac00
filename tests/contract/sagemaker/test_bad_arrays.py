"""Bad files in NumPy's formats: nothing is unpickled, evaluated, or allocated before its size is known.

Source: docs/spec/sagemaker.md section C; numpy's NEP 1.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.contract.lifecycle.changing_models import WIDTH
from tests.contract.sagemaker.sagemaker_models import MOST, SeveralModels, several_models
from trident.core.http.payloads.arrays import write_npy

pytestmark = pytest.mark.slow

NPY = "application/x-npy"
NPZ = "application/x-npz"
TENSOR = np.ones(WIDTH, "<f4").tobytes()
ARRAY = bytes(write_npy(np.ones((1, WIDTH), "<f4")))


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeveralModels]:
    with several_models(tmp_path_factory.mktemp("container")) as made:
        yield made


def npy(header: str, elements: bytes = TENSOR, version: int = 1, length: int | None = None) -> bytes:
    """An array file with this header."""
    size = len(header) if length is None else length
    start = b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size)
    return start + header.encode() + elements


def described(descr: str = "'<f4'", shape: str = f"(1, {WIDTH})") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


PICKLE = b"\x80\x04cposix\nsystem\n(Vtouch sprung\ntR."


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (npy(described("'|O'"), PICKLE), "nothing is ever unpickled here"),
        (npy(described("'O'", "()"), PICKLE), "nothing is ever unpickled here"),
        (PICKLE, "does not begin with \\x93NUMPY"),
        (npy("{'descr': __import__('os').system('touch sprung'), 'fortran_order': False, 'shape': (1, 4), }"), "descr"),
        (npy("(" * 4000), "got a structured array or no 'descr' at all"),
        (npy(described("[('a', '<f4')]")), "got a structured array"),
        (npy(described("'|V4'")), "got elements of type V4"),
        (npy(described("'<c8'"), 2 * TENSOR), "got elements of type c8"),
        (npy(described(shape="(-1, 4)")), "has no 'shape', or an invalid one"),
        (npy(described(shape="(1000000000000, 4)")), "16000000000000 bytes, but there are 16"),
        (npy(described(shape=f"({'9' * 1000},)")), "no array can have the shape"),
        (npy(described(shape="(0, 99999999999)"), b""), "expected shape [-1,4]"),
        (npy(described(shape="(4,)")), "expected shape [-1,4], got [4]"),
        (npy(described(), version=9), "of an unknown version, too long or cut off"),
        (npy(described(), version=2, length=(1 << 32) - 1), "of an unknown version, too long or cut off"),
        (ARRAY[:-1], "are 16 bytes, but there are 15"),
        (ARRAY + b"x", "are 16 bytes, but there are 17"),
        (bytes(write_npy(np.array([[1, 2, 3, 1e300]]))), "element [0,3]: expected a number that FP32 can hold"),
        (bytes(write_npy(np.array([["a", "b", "c", "d"]]))), "expected elements of FP32, got strings"),
    ],
)
def test_bad_array_is_refused(container: SeveralModels, body: bytes, text: str) -> None:
    assert text in container.refusal(400, "floats", body, Content_Type=NPY)
    assert not list(Path.cwd().glob("sprung")), "a pickle was run"


def zipped(content: bytes, name: str = "INPUT0.npy", method: int = zipfile.ZIP_DEFLATED, copies: int = 1) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for number in range(copies):
            made.writestr(name if copies == 1 else f"{number}.npy", content)
    return file.getvalue()


def lying(size: int) -> bytes:
    """A bomb whose header claims `size` bytes."""
    made = bytearray(zipped(bytes(write_npy(np.zeros((1 << 20, WIDTH), "<f4")))))
    struct.pack_into("<L", made, 22, size)
    struct.pack_into("<L", made, made.find(b"PK\x01\x02") + 24, size)
    return bytes(made)


def encrypted() -> bytes:
    made = bytearray(zipped(ARRAY))
    made[6] |= 1
    made[made.find(b"PK\x01\x02") + 8] |= 1
    return bytes(made)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda: zipped(bytes(write_npy(np.zeros((MOST // 16, WIDTH), "<f4")))), f"at most {MOST} are allowed"),
        (lambda: lying(10), "Bad CRC-32"),
        (lambda: lying(0), "Bad CRC-32"),
        (lambda: lying((1 << 32) - 2), f"at most {MOST} are allowed"),
        (lambda: zipped(b"", copies=30_000), "its directory is larger than 1048576 bytes"),
        (zipped(zipped(ARRAY)), "does not begin with \\x93NUMPY"),
        (encrypted(), "encrypted, or compressed in a way that numpy does not write"),
        (zipped(ARRAY, method=zipfile.ZIP_LZMA), "compressed in a way that numpy does not write"),
        (zipped(ARRAY, "../../INPUT0.npy"), "'../../INPUT0' is not an input of model 'floats'"),
        (zipped(ARRAY, "/etc/passwd.npy"), "'/etc/passwd' is not an input of model 'floats'"),
        (zipped(npy(described("'|O'"), PICKLE)), "nothing is ever unpickled here"),
        (zipped(ARRAY)[:-5], "it has no directory at its end"),
        (zipped(ARRAY).replace(b"PK\x03\x04", b"PK\x03\x05"), "Bad magic number"),
    ],
    ids=[
        "bomb",
        "small",
        "zero",
        "huge",
        "many",
        "nested",
        "encrypted",
        "lzma",
        "up",
        "root",
        "object",
        "cut",
        "magic",
    ],
)
def test_bad_archive_of_arrays_is_refused(
    container: SeveralModels, body: bytes | Callable[[], bytes], text: str
) -> None:
    content = body if isinstance(body, bytes) else body()  # those that take time are made by the test
    assert len(content) < 4 << 20
    assert text in container.refusal(400, "floats", content, Content_Type=NPZ)
