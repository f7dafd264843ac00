"""The two written forms of a model configuration: `config.pbtxt` (protobuf text) and the JSON of a load request.

Source: docs/spec/model-config.md introduction; docs/spec/repository.md section 1.6.
"""

from __future__ import annotations

import codecs
import difflib
import re

from google.protobuf import descriptor_pool, json_format, text_format

from core.config.problem import InvalidModelConfig, Problem
from core.config.schema import ModelConfig
from core.errors import ConfigInvalid

# Python's protobuf words two errors differently from the C++ one that Triton uses and that logs are searched for.
_NO_INTEGER = re.compile(r"Couldn't parse integer: (.*)", re.DOTALL)
_OUT_OF_RANGE = re.compile(r"Value out of range: (-?)(.*)", re.DOTALL)
# The lowest number of the smallest signed field is minus that: what is refused above it is refused for its sign.
_LEAST_INT32 = 2**31
_NEGATIVE = "Expected integer, got: -"
# `LINE:COLUMN : 'the source line': ` in front of what went wrong; the source line may itself hold quotes and colons.
_POSITION = re.compile(r"^(\d+):(\d+) : (?:'.*': )?", re.DOTALL)
# Strings come first: in one of them a # begins no comment. One without an end is taken as well, or a line of quotation
# marks would be looked at from each of them to its end.
_COMMENT = re.compile(r""""(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|(?P<comment>\#[^\n]*)""")
_STRANGE_BYTE = re.compile("[\udc80-\udcff]")  # how Python shows a byte that is not UTF-8
_LONGEST_REASON = 1000  # characters; it quotes names and numbers, however long they are
_UNKNOWN_FIELD = re.compile(r'Message type "(?P<type>[\w.]+)" has no field named "(?P<name>[^"]*)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "(?P<type>[\w.]+)" has no value named (?P<name>\w+)')
_INVALID_JSON_VALUE = re.compile(r"Invalid enum value (?P<name>\w+) for enum type (?P<type>[\w.]+)")
_FIELDS_LISTED = re.compile(r"\.?\s*Available Fields\(except extensions\).*", re.DOTALL)


def parse_model_config(text: str, path: str) -> ModelConfig:
    """The message that `text` (protobuf text format, read from file `path`) describes.

    Raises InvalidModelConfig with Triton's `failed to read text proto from PATH`, the position and protobuf's reason.
    """
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        line, column = error.GetLine() or 1, error.GetColumn() or 1
        reason = _shortened(_reworded(_POSITION.sub("", str(error), count=1)))
        message = f"failed to read text proto from {path}: {line}:{column}: {reason}"
        # Not chained: protobuf's own text repeats the source line, which in a file of junk is all of it.
        raise InvalidModelConfig([Problem(f"{path}:{line}:{column}", message, _hint(reason))]) from None


def decode_config(content: bytes, path: str) -> str:
    """The text of a configuration file. Comments may be in any encoding, as Triton never looks at them; nor does it at
    the mark with which some editors begin a file of UTF-8.

    Raises InvalidModelConfig for a byte elsewhere that is not UTF-8, with its place.
    """
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        text = _COMMENT.sub(_without_strange_bytes, content.decode("utf-8", "surrogateescape"))
    strange = _STRANGE_BYTE.search(text)
    if strange is None:
        return text
    before = text[: strange.start()].split("\n")
    line, column, byte = len(before), len(before[-1]) + 1, ord(strange.group()) - 0xDC00
    message = f"failed to read text proto from {path}: {line}:{column}: byte 0x{byte:02x} is not UTF-8"
    raise InvalidModelConfig([Problem(f"{path}:{line}:{column}", message, "save the file as UTF-8")])


def _without_strange_bytes(match: re.Match[str]) -> str:
    """A string as it is, a comment with a question mark for each byte that is not UTF-8."""
    return match[0] if match["comment"] is None else _STRANGE_BYTE.sub("?", match[0])


def parse_config_override(json_text: str) -> ModelConfig:
    """The message that the `config` parameter of a load request describes: JSON with proto field names.

    int64 values may be numbers or strings; unknown fields are refused. Raises ConfigInvalid.
    """
    try:
        config = json_format.Parse(json_text, ModelConfig())
    except json_format.ParseError as error:
        reason = _shortened(_FIELDS_LISTED.sub(".", str(error)))
        raise ConfigInvalid(f"Invalid config override: {reason}", hint=_hint(reason) or None) from None
    if not json_text.lstrip().startswith("{"):
        raise ConfigInvalid("Invalid config override: expected a JSON object")
    return config


def _reworded(reason: str) -> str:
    return _OUT_OF_RANGE.sub(_out_of_range, _NO_INTEGER.sub(r"Expected integer, got: \1", reason))


def _out_of_range(match: re.Match[str]) -> str:
    """To C++ a sign is a word of its own, which a field without negative numbers does not expect."""
    sign, number = match.groups()
    if sign and number.isdecimal() and len(number) <= len(str(_LEAST_INT32)) and int(number) <= _LEAST_INT32:
        return _NEGATIVE
    return f"Integer out of range ({number})"


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


def _hint(reason: str) -> str:
    """Which known field or value is nearest to an unknown one; empty where nothing more can be said."""
    if reason == _NEGATIVE:
        return "a number, not below 0"
    pool = descriptor_pool.Default()
    if match := _UNKNOWN_FIELD.search(reason):
        known = [field.name for field in pool.FindMessageTypeByName(match["type"]).fields]
    elif match := _UNKNOWN_VALUE.search(reason) or _INVALID_JSON_VALUE.search(reason):
        known = [value.name for value in pool.FindEnumTypeByName(match["type"]).values]
    else:
        return ""
    nearest = difflib.get_close_matches(match["name"], known, n=1, cutoff=0.5)
    return f"did you mean '{nearest[0]}'?" if nearest else f"known are: {', '.join(known)}"
