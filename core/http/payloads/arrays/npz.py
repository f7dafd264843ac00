"""numpy's npz format: a zip file with an npy file for each input or output. Sizes are checked before inflation.

Source: numpy's NEP 1; APPNOTE.TXT of the zip format, section 4.3.16 (the end of the directory).
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

from core.config.model_spec import ModelSpec
from core.errors import InvalidRequest
from core.http.payloads.arrays.inputs import decode_arrays
from core.http.payloads.arrays.npy import read_npy, storable, write_npy
from core.http.payloads.arrays.sparse import dense_matrix, is_sparse
from core.http.payloads.instance_signature import check_names, single_input
from core.http.payloads.output_columns import OutputColumn
from core.http.payloads.payload import DecodedPayload, DecodeRules
from core.inference.tensors import Array, Buffer

_SUFFIX = ".npy"
_END = struct.Struct("<4s4H2LH")
_END_SIGNATURE = b"PK\x05\x06"
_LONGEST_COMMENT = 65535
_ZIP64_LOCATOR = b"PK\x06\x07"
_LOCATOR_SIZE = 20
# A member takes about 100 bytes of the directory, and 100 times as much memory once it is parsed.
_LARGEST_DIRECTORY = 1 << 20
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
_NO_ARCHIVE = "the body is not a numpy archive (application/x-npz)"


def decode_npz(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Decode an array for each input, or a sparse matrix as the only input.

    Raises InvalidRequest, also if the arrays have more than `rules.max_input_size` bytes in all.
    """
    content = bytes(body)
    _check_directory(content)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = _members(archive)
            if sparse := is_sparse(members) and spec.inputs.keys().isdisjoint(members):
                expected = single_input(spec, "a sparse matrix")
            else:
                check_names(members, spec, "the archive")
            _check_members(members, rules.max_input_size)
            arrays = {name: _read(archive, member, name) for name, member in members.items()}
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, ValueError) as error:
        raise InvalidRequest(f"{_NO_ARCHIVE}: {error}") from None
    if sparse:
        arrays = {expected.name: dense_matrix(arrays, expected.datatype.size, rules.max_input_size)}
    return decode_arrays(arrays, spec)


def encode_npz(columns: list[OutputColumn]) -> list[bytes]:
    """Encode an uncompressed array for each output. Raises InvalidRequest for rows of different shapes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for column in columns:
            # A ZipInfo, because a plain name would put the time of day into the file.
            member = zipfile.ZipInfo(column.name + _SUFFIX)
            archive.writestr(member, write_npy(storable(column, "application/x-npz")))
    return [file.getvalue()]


def _check_directory(content: bytes) -> None:
    """Refuse a directory that takes much memory to parse; the end of the file gives its size."""
    end = content.rfind(_END_SIGNATURE, max(0, len(content) - _LONGEST_COMMENT - _END.size))
    if end < 0 or len(content) - end < _END.size:
        raise InvalidRequest(f"{_NO_ARCHIVE}: it has no directory at its end")
    size = _END.unpack_from(content, end)[5]
    locator = content[max(0, end - _LOCATOR_SIZE) : end]
    if size > _LARGEST_DIRECTORY or locator.startswith(_ZIP64_LOCATOR):
        raise InvalidRequest(f"{_NO_ARCHIVE}: its directory is larger than {_LARGEST_DIRECTORY} bytes")


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members by array name."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(_SUFFIX)
        if name in members:
            raise InvalidRequest(f"the archive has the array '{name[:60]}' twice")
        members[name] = member
    return members


def _check_members(members: dict[str, zipfile.ZipInfo], limit: int) -> None:
    for name, member in members.items():
        if member.compress_type not in _METHODS or member.flag_bits & _ENCRYPTED:
            raise InvalidRequest(f"array '{name[:60]}' is encrypted, or compressed in a way that numpy does not write")
    total = sum(member.file_size for member in members.values())
    if total > limit:
        raise InvalidRequest(f"the arrays of the archive have {total} bytes, at most {limit} are allowed")


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Array:
    # Inflates at most the size in the directory; the checksum fails if that size is too small.
    with archive.open(member) as file:
        return read_npy(file.read(member.file_size + 1), f"array '{name[:60]}'")
