"""What a file of trees says of them, read without Treelite: a bounded part of its beginning or end.

Source: docs/spec/framework-backends.md section 6.7; the formats of XGBoost, LightGBM and Treelite 4.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from core.backends.file_content import end_of, start_of

_READ = 64 << 10

_XGBOOST_JSON = re.compile(rb'"learner_model_param"\s*:\s*\{([^{}]{1,4096})\}')
_JSON_MEMBER = re.compile(rb'"(num_\w{1,32})"\s*:\s*"(\d{1,9})"')
_XGBOOST_UBJ = re.compile(rb"learner_model_param\{(.{1,4096}?)\}L", re.DOTALL)
# A key and a text, each behind its length in eight bytes.
_UBJ_MEMBER = re.compile(rb"(num_[a-z]{1,32})SL\0{7}.(\d{1,9})", re.DOTALL)
_LIGHTGBM_MEMBER = re.compile(rb"^(num_class|max_feature_idx)=(\d{1,9})\r?$", re.MULTILINE)

# Treelite 4: three numbers of its version, two datatypes, the trees; then features, kind, averaging, targets, and the
# classes of each target behind their number.
_CHECKPOINT = struct.Struct("<3i2BQiBBiQi")
_CHECKPOINT_MAJOR = 4


@dataclass(frozen=True, slots=True)
class TreeHeader:
    """`features` are the values of a row. `classes` is 1 for a regression and for two classes."""

    features: int
    classes: int
    targets: int = 1


def read_header(path: Path, model_type: str) -> TreeHeader | None:
    """The header of the file at `path`; None if it is not of `model_type`, incomplete, or of an unknown version."""
    if model_type == "treelite_checkpoint":
        return _of_checkpoint(start_of(path, _CHECKPOINT.size) or b"")
    if model_type == "lightgbm":
        found = _members(_LIGHTGBM_MEMBER, start_of(path, _READ) or b"")
        return TreeHeader(found["max_feature_idx"] + 1, found["num_class"]) if len(found) == 2 else None
    end = end_of(path, _READ) or b""
    block, member = (_XGBOOST_JSON, _JSON_MEMBER) if model_type == "xgboost_json" else (_XGBOOST_UBJ, _UBJ_MEMBER)
    match = block.search(end)
    found = _members(member, match[1]) if match else {}
    if "num_feature" not in found:
        return None
    # XGBoost writes 0 classes for a regression, and leaves out the targets of its older versions.
    return TreeHeader(found["num_feature"], max(1, found.get("num_class", 1)), max(1, found.get("num_target", 1)))


def _of_checkpoint(start: bytes) -> TreeHeader | None:
    if len(start) < _CHECKPOINT.size:
        return None
    major, *_, features, _, _, targets, _, classes = _CHECKPOINT.unpack(start)
    return TreeHeader(features, classes, targets) if major == _CHECKPOINT_MAJOR and features > 0 else None


def _members(pattern: re.Pattern[bytes], text: bytes) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in pattern.findall(text)}
