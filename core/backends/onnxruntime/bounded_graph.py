"""Tells whether the values of the inputs can make a graph run longer.

Some operators repeat a part of the graph, or make a tensor whose size is a value. They are found by their names in the
file, because ONNX Runtime does not expose the parsed graph.
Source: ONNX's protobuf definition (NodeProto.op_type is field 4) and its operator reference.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path

_OPERATORS = (
    # repeat
    *(b"Loop", b"Scan", b"SequenceMap", b"BeamSearch", b"GreedySearch", b"Sampling", b"WhisperBeamSearch"),
    # make a tensor whose size is the value of an input
    *(b"Range", b"Tile", b"Expand", b"ConstantOfShape", b"Resize", b"Upsample", b"OneHot", b"Pad", b"CenterCropPad"),
    *(b"Col2Im", b"AffineGrid", b"CropAndResize", b"DFT", b"STFT", b"MelWeightMatrix", b"HannWindow", b"HammingWindow"),
    *(b"BlackmanWindow", b"MaxUnpool", b"SplitToSequence"),
)
_FIELD = b'"'
_FOUND = re.compile(_FIELD + b"(?:%b)" % b"|".join(re.escape(bytes([len(name)]) + name) for name in _OPERATORS))
# Follows the first four bytes of a file in ONNX Runtime's own format, which stores names in another way.
_ORT_FORMAT = b"ORTM"
_HEADER_SIZE = 8
# Larger files are not searched: executions of such graphs are hardly ever short.
_SIZE_AT_MOST = 16 << 20


def has_bounded_graph(path: Path) -> bool:
    """Whether the running time of the graph in the file at `path` is independent of values; False if unknown."""
    if path.suffix == ".ort" or not _HEADER_SIZE < path.stat().st_size <= _SIZE_AT_MOST:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content[4:8] != _ORT_FORMAT and _FOUND.search(content) is None
