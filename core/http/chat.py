"""The prompt of a chat: messages, rendered by the model's template as transformers renders them.

A template is a parameter of the model's configuration, `chat_template`, or one of several by name,
`chat_template.NAME`. It may come with a model from anywhere, so it is rendered in Jinja's sandbox.
Source: docs/text-models.md; `apply_chat_template` of transformers; OpenAI's API reference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from trident.core.errors import InvalidRequest
from trident.core.http.text_routes import flag
from trident.core.http.tool_calls import form_of, read_json

_TEMPLATE = "chat_template"
# What a model thought is in a message by these names. transformers gives it to templates by the first two.
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
MEMBERS = frozenset(
    {
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "documents",
        _TEMPLATE,
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
    }
)
"""The members of a body that make the prompt of a chat."""
# Without a template of the model's own.
_PLAIN_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content or '' }}\n{% endfor %}assistant:"
# Ends the message that is continued, to find its end in what the template makes of it.
_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "


def chat_prompt(model: str, parameters: Mapping[str, str], body: Mapping[str, Any]) -> str:
    """The text of the messages in `body`, by the template in the `parameters` of `model`, or a plain one.

    Raises InvalidRequest.
    """
    given = body.get("messages")
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        raise InvalidRequest("'messages' must be a list of objects with 'role' and 'content'")
    source = chosen_template(model, parameters, body)
    try:
        template, form, names = _compiled(source)
    except Exception as error:  # whatever the library raises
        raise InvalidRequest(f"the chat template of model '{model}' cannot be read: {error}") from error
    messages = [_message(message, at, form) for at, message in enumerate(given)]
    tools, documents = _objects(body, "tools"), _objects(body, "documents")
    more = body.get("chat_template_kwargs")
    if more is not None and not isinstance(more, dict):
        raise InvalidRequest("'chat_template_kwargs' must be an object")
    if twice := [name for name in more or () if name in MEMBERS and body.get(name) is not None]:
        raise InvalidRequest(f"'{twice[0]}' is in the body and in 'chat_template_kwargs'", hint="send it once")
    shown = {"tools": None if body.get("tool_choice") == "none" else tools, "documents": documents, **(more or {})}
    for name, value in shown.items():
        # Without reading the tools a template may show how they are called: the answer's calls are found by them.
        if value is not None and name not in names and not (name == "tools" and form_of(source)):
            raise InvalidRequest(
                f"'{name}' has no effect: the chat template of model '{model}' does not read it",
                hint="leave it out, or give the model a chat_template that does",
            )
    continues = body.get("continue_final_message")
    continued = continues if isinstance(continues, str) else "content"
    if not isinstance(continues, str):
        continues = flag(body, "continue_final_message", False)
    begins = flag(body, "add_generation_prompt", not continues)
    if continues and begins:
        raise InvalidRequest("'continue_final_message' and 'add_generation_prompt' are not possible together")
    flag(body, "parallel_tool_calls", True)
    values: dict[str, Any] = {name: text for name, text in parameters.items() if name.endswith("_token")}
    values |= {
        "messages": messages,
        "tools": tools,
        "documents": documents,
        "add_generation_prompt": begins,
        **(more or {}),
    }
    last = ""
    if continues:
        messages[-1], last = _marked(messages[-1], continued)
    try:
        text = str(template.render(**values))
    except Exception as error:  # whatever a template raises
        raise InvalidRequest(f"the chat template of model '{model}' refuses the messages: {error}") from error
    if not continues:
        return text
    # Up to the end of the last message, which is continued. Templates may strip its space.
    end = text.rfind(_CONTINUED.strip())
    if end < 0 or last.strip() not in text:
        raise InvalidRequest(f"the chat template of model '{model}' does not end with the last message as it is")
    return text[:end] if text[end:].startswith(_CONTINUED) else text[:end].rstrip()


def chosen_template(model: str, parameters: Mapping[str, str], body: Mapping[str, Any]) -> str:
    """The template that the request names, that for tools if there are any, or the only one. Raises InvalidRequest."""
    named = body.get(_TEMPLATE)
    if named is not None:
        if f"{_TEMPLATE}.{named}" not in parameters:
            raise InvalidRequest(
                f"'{_TEMPLATE}' names no template of model '{model}'",
                hint=f"it has: {', '.join(_names(parameters)) or 'none'}",
            )
        return parameters[f"{_TEMPLATE}.{named}"]
    if body.get("tools") and f"{_TEMPLATE}.tool_use" in parameters:
        return parameters[f"{_TEMPLATE}.tool_use"]
    if _TEMPLATE not in parameters and (names := _names(parameters)):
        raise InvalidRequest(
            f"model '{model}' has several chat templates and no default",
            hint=f"send '{_TEMPLATE}', one of: {', '.join(names)}",
        )
    return parameters.get(_TEMPLATE) or _PLAIN_TEMPLATE


def _names(parameters: Mapping[str, str]) -> list[str]:
    """The names of a model's templates."""
    return [name.partition(".")[2] for name in parameters if name.startswith(f"{_TEMPLATE}.")]


def _marked(message: Mapping[str, Any], member: str) -> tuple[dict[str, Any], str]:
    """The message with a mark at the end of its `member`, and that text. Raises InvalidRequest if it has none."""
    found = message.get(member)
    if isinstance(found, str):
        # The same thoughts are there by several names.
        names = [name for name in _THOUGHTS if message.get(name) == found] if member in _THOUGHTS else [member]
        return {**message, **dict.fromkeys(names, found + _CONTINUED)}, found
    if not found or member != "content":
        raise InvalidRequest(f"'continue_final_message' is set, and the last message has no '{member}' that is text")
    text = found[-1]["text"]
    return {**message, "content": [*found[:-1], {**found[-1], "text": text + _CONTINUED}]}, text


class _Contents(NamedTuple):
    """How a template reads contents: by their parts, and asking whether one is none."""

    by_parts: bool
    null: bool


def _message(message: Mapping[str, Any], at: int, contents: _Contents) -> dict[str, Any]:
    """The message with the arguments of calls as objects, and unless the template reads contents by parts, with one
    text. A content that is null is left out, as in transformers 5, unless the template asks for it.

    Raises InvalidRequest for other parts than text, such as images.
    """
    content = message.get("content")
    if not isinstance(message.get("role"), str):
        raise InvalidRequest(f"'role' of message {at} must be a text, such as user")
    if isinstance(content, list):
        if not all(
            isinstance(part, dict) and isinstance(part.get("text"), str) and part.get("type", "text") == "text"
            for part in content
        ):
            raise InvalidRequest(f"'content' of message {at} has a part that is not text, which no model takes here")
        if not contents.by_parts:
            content = "".join(part["text"] for part in content)
    elif not isinstance(content, str | None):
        raise InvalidRequest(f"'content' of message {at} must be a text or a list of parts")
    # OpenAI's client writes what an answer has not as null, and templates ask whether a message has it.
    made = {name: value for name, value in message.items() if value is not None and (name, value) != ("tool_calls", [])}
    if content is not None or ("content" in message and contents.null):
        made["content"] = content
    if thought := next((name for name in _THOUGHTS if name in made), None):
        made = {"thinking": made[thought], **made, "reasoning_content": made[thought]}
    if isinstance(calls := made.get("tool_calls"), list):
        made["tool_calls"] = [_call(call, at) for call in calls]
    return made


def _call(call: Any, at: int) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments, str):
        return call
    try:
        return {**call, "function": {**function, "arguments": read_json(arguments or "{}")}}
    except ValueError as error:
        raise InvalidRequest(f"the arguments of a call in message {at} are not JSON: {error}") from None


def _objects(body: Mapping[str, Any], member: str) -> list[dict[str, Any]] | None:
    values = body.get(member)
    if values is not None and not (isinstance(values, list) and all(isinstance(each, dict) for each in values)):
        raise InvalidRequest(f"'{member}' must be a list of objects")
    return values or None


@lru_cache(maxsize=32)
def _compiled(source: str) -> tuple[Any, _Contents, frozenset[str]]:
    """The template, how it reads contents, and the names that it reads."""
    # Jinja is imported by the first chat.
    from jinja2 import meta
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import CallBlock, Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """`{% generation %}`, which marks for training what the assistant said; here it is only text."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

        def _said(self, caller: Any) -> Any:
            return caller()

    class Names(Namespace):
        """Refuses names that begin with an underscore, as in transformers 5, where they could reach Python's own."""

        def __init__(*args: Any, **kwargs: Any) -> None:  # `namespace(self=…)` is possible
            own, *given = args
            values = dict(*given, **kwargs)
            for name in values:
                Names._check(name)
            Namespace.__init__(own, values)

        def __setitem__(self, name: str, value: Any) -> None:
            Names._check(name)
            Namespace.__setitem__(self, name, value)

        @staticmethod
        def _check(name: Any) -> None:
            if isinstance(name, str) and name.startswith("_"):
                raise SecurityError(f"a namespace cannot have the name '{name}', which begins with an underscore")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["namespace"] = Names
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    tree = environment.parse(source)
    return environment.from_string(source), _contents(tree), frozenset(meta.find_undeclared_variables(tree))


def _contents(template: Any) -> _Contents:
    """A template reads parts if it goes through the content of a message, or chooses from it, as if it were a list."""
    from jinja2 import nodes

    names = {"content"}

    def is_content(node: nodes.Node) -> bool:
        while isinstance(node, nodes.Filter) and node.node is not None:
            node = node.node
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            node = node.node
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
            return bool(node.arg.value == "content")
        named = isinstance(node, nodes.Name) and node.name in names
        return named or (isinstance(node, nodes.Getattr) and node.attr == "content")

    for assigned in template.find_all(nodes.Assign):
        if isinstance(assigned.target, nodes.Name) and is_content(assigned.node):
            names.add(assigned.target.name)
    null = any(each.name == "none" and is_content(each.node) for each in template.find_all(nodes.Test)) or any(
        is_content(each.expr) and nodes.Const(None) in [operand.expr for operand in each.ops]
        for each in template.find_all(nodes.Compare)
    )
    if any(is_content(loop.iter) for loop in template.find_all(nodes.For)):
        return _Contents(True, null)
    chosen = [each for each in template.find_all(nodes.Filter) if each.name in ("selectattr", "rejectattr", "map")]
    read = [each.node for each in template.find_all(nodes.Getattr) if each.attr == "text"]
    read += [
        each.node
        for each in template.find_all(nodes.Getitem)
        if isinstance(each.arg, nodes.Const) and each.arg.value == "text"
    ]
    of_parts = [each for each in read if isinstance(each, nodes.Getitem)]
    by_parts = any(each.node is not None and is_content(each.node) for each in (*chosen, *of_parts))
    return _Contents(by_parts, null)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Replaces Jinja's own filter, which escapes for HTML and sorts."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise ValueError(message)
