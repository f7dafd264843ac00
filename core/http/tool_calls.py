"""The calls of tools in what a model writes, as OpenAI's `tool_calls`.

How a model writes them follows from its chat template: Hermes and Qwen write `<tool_call>{…}</tool_call>`, Llama 3 an
object or calls of Python, and Mistral a list, or a name before its arguments. If a request wants a call, a grammar has
the model write calls and nothing else.
Source: docs/text-models.md; OpenAI's API reference; the chat templates of these models; what vLLM's parsers take.
"""

from __future__ import annotations

import ast
import json
import re
import uuid
import warnings
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


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
_END = "</tool_call>"
# Stands between a name and its arguments in Mistral's newer form, and where Python's constants have other names.
_SIGNS = re.compile(r"(\[CALL_ID\]\w*)?(\[ARGS\])?\s*")
_CONSTANTS = {"true": True, "false": False, "null": None}
# The members of a call: its name, and its arguments by either name.
_ARGUMENTS = ("arguments", "parameters")


class Tools(NamedTuple):
    """The tools of a request: how calls are written, and their `names`.

    Unless it `is_parallel`, an answer has one call. `guide` is the JSON schema of an answer that has to be calls; None
    leaves the model free. `has_short_ids`: the template takes ids of nine letters and digits only, as Mistral's do.
    """

    form: CallForm
    names: tuple[str, ...]
    is_parallel: bool
    guide: dict[str, Any] | None
    has_short_ids: bool = False

    @property
    def beginnings(self) -> tuple[str, ...]:
        """The beginnings of an answer that is calls. Special tokens may be left out of the text."""
        if self.form is CallForm.LLAMA:
            return "{", "[", *(f"{name}.call(" for name in self.names)
        return "[", *(name + sign for name in self.names for sign in ("{", " {", "[ARGS]", "[CALL_ID]"))


def form_of(template: str) -> CallForm | None:
    """How calls are written by a model whose prompts `template` makes; None if it does not say."""
    return next((each for each in list(CallForm)[:3] if each.value in template), None)


def with_allowed_tools(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body with the tools that its `tool_choice` allows, and the mode as the choice. Raises InvalidRequest."""
    choice = body.get("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return body
    allowed = choice.get("allowed_tools")
    mode, listed = (allowed.get("mode"), allowed.get("tools")) if isinstance(allowed, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise InvalidRequest(
            "'allowed_tools' of 'tool_choice' must have 'mode', auto or required, and 'tools', a list with at least one"
        )
    names = [_name_of(tool) for tool in listed]
    tools = body.get("tools")
    known = {_name_of(tool): tool for tool in tools} if isinstance(tools, list) else {}
    if unknown := [name for name in names if name is None or name not in known]:
        raise InvalidRequest(
            f"'allowed_tools' of 'tool_choice' has {orjson.dumps(unknown[0]).decode()}, which names none of the tools",
            hint='its tools are {"type": "function", "function": {"name": …}} with names in tools',
        )
    return {**body, "tools": [tool for name, tool in known.items() if name in names], "tool_choice": mode}


def _name_of(tool: Any) -> str | None:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def tools_of(body: Mapping[str, Any], template: str, can_guide: bool) -> Tools | None:
    """The tools of a chat whose prompt is made by `template`; None if calls stay text. Raises InvalidRequest.

    `can_guide`: the model can be made to call.
    """
    functions: dict[str, Any] = {}
    for at, tool in enumerate(body.get("tools") or ()):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not _name_of(tool) or not isinstance(function, dict):
            raise InvalidRequest(
                f"tool {at} in 'tools' is not a function",
                hint='send {"type": "function", "function": {"name": …, "parameters": …}}',
            )
        functions[function["name"]] = function
    is_parallel = body.get("parallel_tool_calls") is not False
    choice = body.get("tool_choice")
    has_short_ids = CallForm.MISTRAL.value in template
    if choice in (None, "auto", "none"):
        form = form_of(template)
        stays = form is None or not functions or choice == "none"
        return None if stays or form is None else Tools(form, tuple(functions), is_parallel, None, has_short_ids)
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
        return Tools(CallForm.ARGUMENTS, (name,), False, _parameters(functions[name])[0], has_short_ids)
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
    guide |= {"$defs": shared} if shared else {}
    return Tools(CallForm.LIST, tuple(functions), is_parallel, guide, has_short_ids)


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
        self._beginnings = tools.beginnings

    def add(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """The content and the calls that are certain with the next piece, `text`."""
        self._kept += text
        form = self._tools.form
        calls: list[dict[str, Any]] = []
        if form is not CallForm.HERMES:
            return self._taken(self._content_size()), []
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
        """Return the remaining content and calls at the end of the text."""
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
        before, mark, written = rest.partition(form.value)
        if not self._is_first and not mark:
            return rest, []
        content, written = (before, written) if mark else ("", before)
        found = _calls(written.replace(form.value, " ").strip(), form, self._tools.names)
        if not found or (content.strip() and self._is_first):
            return rest, []
        return content.rstrip(), [made for each in found for made in self._new(each)]

    def _content_size(self) -> int:
        """How many characters at the beginning are content for certain, and no part of a call."""
        form, kept = self._tools.form, self._kept
        if form in (CallForm.LIST, CallForm.ARGUMENTS):
            return 0
        begun = kept.lstrip()
        marks = (form.value, *self._beginnings)
        if self._is_first and (not begun or any(begun.startswith(mark) or mark.startswith(begun) for mark in marks)):
            return 0
        self._is_first = False
        begin = kept.find(form.value)
        size = begin if begin >= 0 else len(kept) - _overlap(kept, form.value)
        return len(kept[:size].rstrip())

    def _taken(self, size: int) -> str:
        taken, self._kept = self._kept[:size], self._kept[size:]
        return taken

    def _call(self, text: str) -> tuple[str, str] | None:
        try:
            return _name_and_arguments(read_json(text), self._tools.names)
        except ValueError:
            return None

    def _new(self, call: tuple[str, str]) -> list[dict[str, Any]]:
        if self.count and not self._tools.is_parallel:
            return []
        index, self.count = self.count, self.count + 1
        function = {"name": call[0], "arguments": call[1]}
        made = uuid.uuid4().hex
        name = made[:9] if self._tools.has_short_ids else f"call_{made}"
        return [{"index": index, "id": name, "type": "function", "function": function}]


def _calls(text: str, form: CallForm, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """The names and arguments in a text that is calls; [] if any of it is none."""
    if form is CallForm.MISTRAL and not text.startswith("["):
        return _named(text, names)
    listed = _listed(text)
    if form is CallForm.LLAMA and not listed:
        try:
            with warnings.catch_warnings(action="ignore"):  # of escapes that Python does not know
                parsed = ast.parse(text, mode="eval").body
            calls = parsed.elts if isinstance(parsed, ast.List) else [parsed]
            return [_of_call(call, names) for call in calls]
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return []
    found = [_name_and_arguments(each, names) for each in listed]
    return [] if None in found else [each for each in found if each is not None]


def _named(text: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """The calls in a text that has each name before its arguments, an object."""
    found, at = [], 0
    while at < len(text):
        name = max((name for name in names if text.startswith(name, at)), key=len, default=None)
        signs = _SIGNS.match(text, at + len(name)) if name else None
        if name is None or signs is None or not text.startswith("{", signs.end()):
            return []
        try:
            arguments, at = _DECODER.raw_decode(text, signs.end())
        except (ValueError, RecursionError):
            return []
        found.append((name, _written(arguments)))
        at = len(text) - len(text[at:].lstrip())
    return found


def _of_call(call: ast.expr, names: tuple[str, ...]) -> tuple[str, str]:
    """The name and the arguments of one call. Raises ValueError or TypeError for anything else."""
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == "call":
        function = function.value
    if not isinstance(function, ast.Name) or function.id not in names:
        raise ValueError
    arguments = {keyword.arg or "": _constant(keyword.value) for keyword in call.keywords}
    if "" in arguments:
        raise ValueError
    return function.id, json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _constant(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_constant(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _constant(value) for key, value in zip(node.keys, node.values, strict=True)}
    return ast.literal_eval(node)


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError
    return node.value


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
    given = [call[name] for name in _ARGUMENTS if name in call] or [{}] * (len(call) == 1)
    if len(given) != 1 or not isinstance(given[0], dict):
        return None
    return call["name"], _written(given[0])


def read_json(text: str) -> Any:
    """Read JSON, in which integers may have any size. Raises ValueError."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _written(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def _overlap(text: str, mark: str) -> int:
    """The number of characters at the end of `text` that begin `mark`."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)
