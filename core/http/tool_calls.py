"""The calls of tools in what a model writes, as OpenAI's `tool_calls`.

How a model writes them follows from its chat template: Hermes and Qwen write `<tool_call>{…}</tool_call>`, Llama 3 an
object, and Mistral a list. If a request wants a call, a grammar has the model write calls and nothing else.
Source: docs/text-models.md; OpenAI's API reference; the chat templates of these models.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import orjson

from trident.core.errors import InvalidRequest


class CallForm(Enum):
    """How calls are written, by what marks their beginning."""

    HERMES = "<tool_call>"
    LLAMA = "<|python_tag|>"
    MISTRAL = "[TOOL_CALLS]"
    # By a grammar: a list of calls, or the arguments of one call.
    LIST = "list"
    ARGUMENTS = "arguments"


_DECODER = json.JSONDecoder()
_END = "</tool_call>"
# Special tokens are not in the text, so that an answer of these forms may begin with the JSON.
_FIRST = {CallForm.LLAMA: "{", CallForm.MISTRAL: "["}
# The members of a call: its name, and its arguments by either name.
_ARGUMENTS = ("arguments", "parameters")


class Tools(NamedTuple):
    """What a request says of its tools: how calls are written, and their `names`.

    Unless it `is_parallel`, an answer has one call. `guide` is the JSON schema of an answer that has to be calls; None
    leaves the model free.
    """

    form: CallForm
    names: tuple[str, ...]
    is_parallel: bool
    guide: dict[str, Any] | None


def tools_of(body: Mapping[str, Any], template: str, can_guide: bool) -> Tools | None:
    """The tools of a chat whose prompt is made by `template`; None if calls stay text. Raises InvalidRequest.

    `can_guide`: the model can be made to call.
    """
    tools = [each.get("function") for each in body.get("tools") or () if isinstance(each, dict)]
    functions = {str(each["name"]): each for each in tools if isinstance(each, dict) and "name" in each}
    is_parallel = body.get("parallel_tool_calls") is not False
    choice = body.get("tool_choice")
    if choice in (None, "auto", "none"):
        form = next((each for each in list(CallForm)[:3] if each.value in template), None)
        stays = form is None or not functions or choice == "none"
        return None if stays or form is None else Tools(form, tuple(functions), is_parallel, None)
    named = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = named.get("name") if isinstance(named, dict) else None
    if choice != "required" and name not in functions:
        raise InvalidRequest(
            f"'tool_choice' is {orjson.dumps(choice).decode()}, which names none of the tools",
            hint='send auto, none, required, or {"type": "function", "function": {"name": …}} with a name in tools',
        )
    if not functions:
        raise InvalidRequest("'tool_choice' is required, and there are no 'tools'")
    if not can_guide:
        raise InvalidRequest(
            f"'tool_choice' is {orjson.dumps(choice).decode()}, and this model cannot be made to call",
            hint="send auto or none",
        )
    if name is not None:
        return Tools(CallForm.ARGUMENTS, (name,), False, _parameters(functions[name])[0])
    calls: list[dict[str, Any]] = []
    shared: dict[str, Any] = {}
    for known, function in functions.items():
        schema, definitions = _parameters(function)
        for key, definition in definitions.items():
            if shared.setdefault(key, definition) != definition:
                raise InvalidRequest(f"two of the tools have different definitions '{key}' in '$defs'")
        members = {"name": {"enum": [known]}, "parameters": schema}
        calls.append({"type": "object", "properties": members, "required": [*members], "additionalProperties": False})
    guide = {"type": "array", "minItems": 1, "items": {"anyOf": calls}, **({} if is_parallel else {"maxItems": 1})}
    return Tools(CallForm.LIST, tuple(functions), is_parallel, guide | ({"$defs": shared} if shared else {}))


def _parameters(function: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of the arguments, and the definitions that it refers to from the root of a schema."""
    schema = function.get("parameters") or {"type": "object"}
    if not isinstance(schema, dict):
        raise InvalidRequest(f"'parameters' of the tool '{function['name']}' must be a JSON schema")
    definitions = schema.get("$defs")
    return schema, definitions if isinstance(definitions, dict) else {}


class Calls:
    """Takes the calls out of a text that comes in pieces. What may belong to one is kept back until more is known."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._kept = ""
        self._is_first = True
        self.count = 0

    def add(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """The content and the calls that are certain with the next piece, `text`."""
        self._kept += text
        form = self._tools.form
        calls: list[dict[str, Any]] = []
        if form is not CallForm.HERMES:
            if form in _FIRST and self._is_first and self._is_content():
                self._is_first = False
            return ("", []) if self._is_first else (self._taken(len(self._kept)), [])
        content = ""
        while (begin := self._kept.find(form.value)) >= 0 and (end := self._kept.find(_END, begin)) >= 0:
            call = self._call(self._kept[begin + len(form.value) : end])
            end += len(_END)
            if call is None:
                content += self._taken(end)
            else:
                content += self._taken(begin).rstrip()
                self._taken(end - begin)
                calls += self._new(call)
        if begin < 0:
            begin = len(self._kept) - _overlap(self._kept, form.value)
        # Space before a call is none of the content.
        return content + self._taken(len(self._kept[:begin].rstrip())), calls

    def end(self) -> tuple[str, list[dict[str, Any]]]:
        """The rest, when the text has ended."""
        rest = self._taken(len(self._kept))
        form = self._tools.form
        if form is CallForm.ARGUMENTS:
            return "", self._new((self._tools.names[0], rest))
        if form is CallForm.HERMES:
            # The end of the last call may be a token that ends the text.
            before, mark, written = rest.partition(form.value)
            call = self._call(written) if mark else None
            if call is not None:
                return before.rstrip(), self._new(call)
            return ("", []) if self.count and not rest.strip() else (rest, [])
        if not self._is_first:
            return rest, []
        written = rest.strip().removeprefix(form.value).strip()
        calls = [_name_and_arguments(each, self._tools.names) for each in _listed(written)]
        found = [each for each in calls if each is not None]
        if not found or len(found) < len(calls):
            return rest, []
        return "", [made for each in found for made in self._new(each)]

    def _is_content(self) -> bool:
        """True once it is clear that the text does not begin as a call does."""
        begun, form = self._kept.lstrip(), self._tools.form
        marks = (form.value, _FIRST[form])
        return bool(begun) and not any(begun.startswith(mark) or mark.startswith(begun) for mark in marks)

    def _taken(self, size: int) -> str:
        taken, self._kept = self._kept[:size], self._kept[size:]
        return taken

    def _call(self, text: str) -> tuple[str, str] | None:
        try:
            return _name_and_arguments(orjson.loads(text), self._tools.names)
        except ValueError:
            return None

    def _new(self, call: tuple[str, str]) -> list[dict[str, Any]]:
        if self.count and not self._tools.is_parallel:
            return []
        index, self.count = self.count, self.count + 1
        function = {"name": call[0], "arguments": call[1]}
        return [{"index": index, "id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}]


def _listed(text: str) -> list[Any]:
    """The values of a JSON list, or of JSON with semicolons between; [] if it is neither."""
    found: list[Any] = []
    at = 0
    try:
        while at < len(text):
            value, at = _DECODER.raw_decode(text, at)
            found += value if isinstance(value, list) else [value]
            at = len(text) - len(text[at:].lstrip("; \n"))
    except (ValueError, RecursionError):
        return []
    return found


def _name_and_arguments(call: object, names: tuple[str, ...]) -> tuple[str, str] | None:
    """The name and the arguments, as JSON, of a call of one of `names`; None for anything else."""
    if not isinstance(call, dict) or call.get("name") not in names:
        return None
    given = [call[name] for name in _ARGUMENTS if name in call]
    if len(given) != 1 or not isinstance(given[0], dict):
        return None
    return call["name"], orjson.dumps(given[0]).decode()


def _overlap(text: str, mark: str) -> int:
    """The number of characters at the end of `text` that begin `mark`."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)
