"""Whether the values that a client sends can make a graph run longer.

Operators that repeat a part of the graph, or that make a tensor as large as a value says, stand in the file by their
names. They are looked for there and not in the parsed graph, which ONNX Runtime shows to nobody.
Source: ONNX's protobuf definition (NodeProto.op_type is field 4) and its operator reference.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path

_OPERATORS = (
    # repeat
    *(b"Loop", b"Scan", b"SequenceMap", b"BeamSearch", b"GreedySearch", b"Sampling", b"WhisperBeamSearch"),
    # make a tensor as large as one of their inputs says
    *(b"Range", b"Tile", b"Expand", b"ConstantOfShape", b"Resize", b"Upsample", b"OneHot", b"Pad", b"CenterCropPad"),
    *(b"Col2Im", b"AffineGrid", b"CropAndResize", b"DFT", b"STFT", b"MelWeightMatrix", b"HannWindow", b"HammingWindow"),
    *(b"BlackmanWindow", b"MaxUnpool", b"SplitToSequence"),
)
_FIELD = b'"'
_FOUND = re.compile(_FIELD + b"(?:%b)" % b"|".join(re.escape(bytes([len(name)]) + name) for name in _OPERATORS))
# What stands behind the first four bytes of ONNX Runtime's own format, which has names in another way.
_ORT_FORMAT = b"ORTM"
_HEADER_SIZE = 8
# A graph whose file is larger is not looked at: its executions are hardly ever short.
_SIZE_AT_MOST = 16 << 20


def has_bounded_graph(path: Path) -> bool:
    """Whether nothing in the ONNX file at `path` runs for as long as an input's values say; False where unknown."""
    if path.suffix == ".ort" or not _HEADER_SIZE < path.stat().st_size <= _SIZE_AT_MOST:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content[4:8] != _ORT_FORMAT and _FOUND.search(content) is None
