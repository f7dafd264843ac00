"""Parses the two written forms of a model configuration: `config.pbtxt` (protobuf text) and a load request's JSON.

Source: docs/spec/model-config.md introduction; docs/spec/repository.md section 1.6.
"""

from __future__ import annotations

import codecs
import difflib
import logging
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, text_format
from google.protobuf.message import Message

from trident.core.config.problem import InvalidModelConfig, Problem
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid

_log = logging.getLogger("trident.config")

# Python's protobuf words two errors differently from Triton's C++ one, whose texts people search their logs for.
_NO_INTEGER = re.compile(r"Couldn't parse integer: (.*)", re.DOTALL)
_OUT_OF_RANGE = re.compile(r"Value out of range: (-?)(.*)", re.DOTALL)
# The lowest number of the smallest signed field is minus this. A negative number above it is refused for its sign.
_LEAST_INT32 = 2**31
_NEGATIVE = "Expected integer, got: -"
# The parts of a text that Python's protobuf reads in another way than C++'s, and those that hide such parts. A number
# may have an exponent with a sign.
_PART = re.compile(
    r"""(?P<comment>\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<number>\.?[0-9](?:[eE][+-]|[\w.])*)
    |(?P<minus>-(?:\s|\#[^\n]*\n)+(?=[\w.]))
    |(?P<strange>\+|[^\x00-\x7f])""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?P<known>[abfnrtv\\'\"0-7]|x[0-9a-fA-F]|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})?|\x00")
_CONTROL = "Invalid control characters encountered in text."
_ESCAPE_HINT = r"write a backslash as \\"
_ZERO_OR_ONE = re.compile(r"(?:0+|0[xX]0*)([01])")
_OTHER_NUMBER = re.compile(r"[0-9.]+_|0[oObB]")
# The prefix `LINE:COLUMN : 'the source line': ` of an error; the source line may itself contain quotes and colons.
_POSITION = re.compile(r"^(\d+):(\d+) : (?:'.*': )?", re.DOTALL)
# Strings come first, because a # in a string does not begin a comment. A string without an end matches too; otherwise
# a line of quotation marks would be scanned to its end from each of them.
_COMMENT = re.compile(r""""(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|(?P<comment>\#[^\n]*)""")
_STRANGE_BYTE = re.compile("[\udc80-\udcff]")  # how Python represents a byte that is not UTF-8
_LONGEST_REASON = 1000  # characters; a reason quotes names and numbers of any length
_UNKNOWN_FIELD = re.compile(r'Message type "(?P<type>[\w.]+)" has no field named "(?P<name>[^"]*)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "(?P<type>[\w.]+)" has no value named (?P<name>\w+)')
_INVALID_JSON_VALUE = re.compile(r"Invalid enum value (?P<name>\w+) for enum type (?P<type>[\w.]+)")
_FIELDS_LISTED = re.compile(r"\.?\s*Available Fields\(except extensions\).*", re.DOTALL)


def parse_model_config(text: str, path: str) -> ModelConfig:
    """Parse `text`, which is in protobuf's text format and was read from the file `path`.

    Raises InvalidModelConfig with Triton's `failed to read text proto from PATH`, the position and protobuf's reason.
    """
    try:
        written = text_format.Parse(_PART.sub(partial(_as_in_cpp, path), text), _config_of_lists()())
    except text_format.ParseError as error:
        line, column = error.GetLine() or 1, error.GetColumn() or 1
        reason = _shortened(_reworded(_POSITION.sub("", str(error), count=1)))
        message = f"failed to read text proto from {path}: {line}:{column}: {reason}"
        # Not chained: protobuf's text repeats the source line, which may be the whole file.
        raise InvalidModelConfig([Problem(f"{path}:{line}:{column}", message, _hint(reason))]) from None
    _check_keys(written, path)
    return ModelConfig.FromString(written.SerializeToString())


def _as_in_cpp(path: str, part: re.Match[str]) -> str:
    """Write a `part` of a configuration so that Python's protobuf reads it as C++'s, which Triton uses.

    Raises InvalidModelConfig for what C++ refuses and Python would take.
    """
    found = part[0]
    if part["string"]:
        for escape in _ESCAPE.finditer(found):
            if not escape["known"]:
                reason = "Invalid escape sequence in string literal." if escape[0] == "\\" else _CONTROL
                raise _refused(path, part.string, part.start() + escape.start(), reason, _ESCAPE_HINT)
    elif part["strange"]:
        if found == "+":
            raise _refused(path, part.string, part.start(), "Expected integer, got: +", "write the number without '+'")
        reason = f"Interpreting non ascii codepoint {found.encode('utf-8', 'surrogatepass')[0]}."
        name = unicodedata.name(found, "no character")
        hint = f"this is U+{ord(found):04X}, {name}: outside of quotes and comments use ASCII, such as ordinary blanks"
        raise _refused(path, part.string, part.start(), reason, hint)
    elif part["minus"]:
        return f"{found[1:]}-"
    elif part["number"]:
        if other := _OTHER_NUMBER.match(found):
            at = part.start() + len(other[0]) - 1
            reason = "Need space between number and identifier."
            raise _refused(path, part.string, at, reason, "write numbers with digits only, or as 0x10")
        if bit := _ZERO_OR_ONE.fullmatch(found):  # the same number; C++ takes it for a boolean, too
            return bit[1].ljust(len(found))
    return found


def _refused(path: str, text: str, at: int, reason: str, hint: str) -> InvalidModelConfig:
    """The error for the character `at` of `text`."""
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    message = f"failed to read text proto from {path}: {line}:{column}: {reason}"
    return InvalidModelConfig([Problem(f"{path}:{line}:{column}", message, hint)])


def _check_keys(written: Message, path: str) -> None:
    """Raise InvalidModelConfig for an ensemble's map that has a key twice, and warn of it in other maps.

    As in Triton only the last value of a key counts. The tensor that an earlier one names is missing then, and the
    problems that follow from it tell nothing of the cause.
    """
    problems: list[Problem] = []
    for place, name, entries in _lists_of_entries(written, ""):
        first: dict[object, object] = {}
        for entry in entries:
            if entry.key not in first:
                first[entry.key] = entry.value
            elif name in ("input_map", "output_map"):
                text = f"'{name}' maps '{entry.key}' to '{first[entry.key]}' and to '{entry.value}'"
                hint = "one name is enough: any number of steps, and an output of the ensemble, may read it"
                problems.append(Problem(place, text, hint if name == "output_map" else "keep one of them"))
            else:
                _log.warning("%s: '%s' has the key '%s' twice, and only the last counts", path, place, entry.key)
    if problems:
        raise InvalidModelConfig(problems)


def _lists_of_entries(message: Message, path: str) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """The place, the name and the entries of each map in a message of `_config_of_lists`."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        place = f"{path}{field.name}"
        if field.message_type.name.endswith("Entry"):
            yield place, field.name, value
        elif isinstance(value, Message):
            yield from _lists_of_entries(value, f"{place}.")
        else:
            for index, each in enumerate(value):
                yield from _lists_of_entries(each, f"{place}[{index}].")


@cache
def _config_of_lists() -> type[Message]:
    """ModelConfig with a list of entries in place of each map. Both have the same text and the same bytes."""
    file = descriptor_pb2.FileDescriptorProto()
    ModelConfig.DESCRIPTOR.file.CopyToProto(file)
    file.name = "trident_config_of_lists.proto"
    waiting = list(file.message_type)
    while waiting:
        message = waiting.pop()
        waiting += message.nested_type
        message.options.ClearField("map_entry")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(ModelConfig.DESCRIPTOR.full_name))


def decode_config(content: bytes, path: str) -> str:
    """The text of a configuration file. As in Triton, comments may have any encoding. A byte order mark is ignored.

    Raises InvalidModelConfig with the position of a byte outside comments that is not UTF-8.
    """
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        text = _COMMENT.sub(_without_strange_bytes, content.decode("utf-8", "surrogateescape"))
    strange = _STRANGE_BYTE.search(text)
    if strange is None:
        return text
    byte = ord(strange.group()) - 0xDC00
    raise _refused(path, text, strange.start(), f"byte 0x{byte:02x} is not UTF-8", "save the file as UTF-8")


def _without_strange_bytes(match: re.Match[str]) -> str:
    """Replace each byte of a comment that is not UTF-8 by a question mark; strings stay unchanged."""
    return match[0] if match["comment"] is None else _STRANGE_BYTE.sub("?", match[0])


def parse_config_override(json_text: str) -> ModelConfig:
    """Parse the `config` parameter of a load request, which is JSON with proto field names.

    int64 values may be numbers or strings. Raises ConfigInvalid, also for unknown fields.
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
    """The C++ text: its parser reads a sign as a separate token, which an unsigned field does not expect."""
    sign, number = match.groups()
    if sign and number.isdecimal() and len(number) <= len(str(_LEAST_INT32)) and int(number) <= _LEAST_INT32:
        return _NEGATIVE
    return f"Integer out of range ({number})"


def _shortened(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


def _hint(reason: str) -> str:
    """The known field or value that is nearest to an unknown one; empty for other errors."""
    if reason == _NEGATIVE:
        return "use a number that is not negative"
    pool = descriptor_pool.Default()
    if match := _UNKNOWN_FIELD.search(reason):
        known = [field.name for field in pool.FindMessageTypeByName(match["type"]).fields]
    elif match := _UNKNOWN_VALUE.search(reason) or _INVALID_JSON_VALUE.search(reason):
        known = [value.name for value in pool.FindEnumTypeByName(match["type"]).values]
    else:
        return ""
    nearest = difflib.get_close_matches(match["name"], known, n=1, cutoff=0.5)
    return f"did you mean '{nearest[0]}'?" if nearest else f"known are: {', '.join(known)}"
