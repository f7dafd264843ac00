"""Chat templates render what transformers renders, as it was recorded; members that cannot be honoured are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.text_answers.chats import CHATS, HI, RECORDED, TOKENS
from trident.core.errors import InvalidRequest
from trident.core.http.chat import chat_prompt

ANSWERS = json.loads(RECORDED.read_text())["chats"]


def as_openai_sends(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The arguments of calls are JSON in a text there."""
    sent = json.loads(json.dumps(messages))
    for call in (call for message in sent for call in message.get("tool_calls", ())):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return list(sent)


@pytest.mark.parametrize("name", CHATS)
def test_prompt_equals_that_of_transformers(name: str) -> None:
    chat = CHATS[name]
    templates = chat.template if isinstance(chat.template, dict) else {"default": chat.template}
    parameters = {f"chat_template.{key}": text for key, text in templates.items()} | TOKENS
    body = {"messages": as_openai_sends(chat.messages), **chat.call}
    assert chat_prompt("m", {"chat_template": templates["default"], **parameters}, body) == ANSWERS[name]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"messages": []}, "'messages' must be a list"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "has a part that is not text"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "text": "a"}]}]}, "has a part that is not text"),
        ({"tools": {"type": "function"}}, "'tools' must be a list of objects"),
        ({"parallel_tool_calls": 1}, "'parallel_tool_calls' must be true or false"),
        ({"chat_template": "rag"}, "names no template of model 'm'"),
        ({"chat_template_kwargs": []}, "'chat_template_kwargs' must be an object"),
        ({"add_generation_prompt": "yes"}, "'add_generation_prompt' must be true or false"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "are not possible together"),
        ({"continue_final_message": True}, "does not end with the last message"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "refuses the messages: no tools"),
        ({"messages": [{"role": "escape"}]}, "refuses the messages"),
        ({"messages": [{"content": "x"}]}, "'role' of message 0 must be a text"),
        ({"chat_template_kwargs": {"deep": {"a": 1}}}, "'deep' has no effect: the chat template of model 'm'"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "'enable_thinking' has no effect"),
        ({"chat_template_kwargs": {"messages": []}}, "'messages' is in the body and in 'chat_template_kwargs'"),
        ({"documents": [{"text": "a"}]}, "'documents' has no effect"),
        ({"tools": [{"type": "function"}]}, "'tools' has no effect"),
        ({"continue_final_message": "reasoning"}, "the last message has no 'reasoning'"),
    ],
)
def test_unsupported_chat_request_is_refused(members: dict[str, Any], message: str) -> None:
    template = (
        "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{% if messages[0].role == 'escape' %}{{ ''.__class__.__mro__[1].__subclasses__() }}{% endif %}"
    )
    with pytest.raises(InvalidRequest, match=message):
        chat_prompt("m", {"chat_template": template}, {"messages": HI, **members})


def test_continuing_a_message_changed_by_the_template_is_refused() -> None:
    body = {"messages": [{"role": "assistant", "content": "<t>a</t>b"}], "continue_final_message": True}
    with pytest.raises(InvalidRequest, match="does not end with the last message as it is"):
        chat_prompt("m", {"chat_template": "{{ messages[0].content.split('</t>')[-1] }}"}, body)


@pytest.mark.parametrize("calls", [None, []])
def test_template_gets_no_empty_tool_calls(calls: Any) -> None:
    said = {"role": "assistant", "content": None, "tool_calls": calls, "refusal": None}
    template = "{{ messages[0].keys() | list }}{{ messages[0].content is none }}"
    assert chat_prompt("m", {"chat_template": template}, {"messages": [said]}) == "['role', 'content']True"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages[0].content }}{{ 'content' in messages[0] }}", "False"),
        ("{{ 'none' if messages[0]['content'] is none else messages[0]['content'] }}", "none"),
        ("{% set said = messages[0].content %}{{ said if said != none else 'none' }}", "none"),
    ],
)
def test_null_content_is_left_out_unless_the_template_asks_for_it(template: str, expected: str) -> None:
    said = [{"role": "assistant", "content": None}]
    assert chat_prompt("m", {"chat_template": template}, {"messages": said}) == expected


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_template_reads_thoughts_by_the_names_that_transformers_gives_them(name: str) -> None:
    said = {"role": "assistant", "content": "a", name: "b "}
    template = "{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}|{{ messages[0].content }}"
    assert chat_prompt("m", {"chat_template": template}, {"messages": [said]}) == "b |b |a"
    continued = {"messages": [said], "continue_final_message": name}
    assert chat_prompt("m", {"chat_template": "{{ messages[0].thinking }}x"}, continued) == "b "


def test_template_reads_every_token_that_has_a_name() -> None:
    parameters = {"chat_template": "{{ mask_token }}{{ image_token }}", "mask_token": "<m>", "image_token": "<i>"}
    assert chat_prompt("m", parameters, {"messages": HI}) == "<m><i>"


def test_tools_count_where_the_template_only_shows_how_they_are_called() -> None:
    body = {"messages": HI, "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert chat_prompt("m", {"chat_template": "<tool_call>"}, body) == "<tool_call>"


def test_several_templates_without_a_default_are_chosen_by_name() -> None:
    parameters = {"chat_template.rag": "r", "chat_template.code": "c"}
    with pytest.raises(InvalidRequest, match="model 'm' has several chat templates and no default"):
        chat_prompt("m", parameters, {"messages": HI})
    assert chat_prompt("m", parameters, {"messages": HI, "chat_template": "code"}) == "c"


def test_arguments_of_calls_keep_integers_of_any_size() -> None:
    function = {"name": "f", "arguments": '{"n": 12345678901234567890123}'}
    said = {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
    template = "{{ messages[0].tool_calls[0].function.arguments.n }}"
    assert chat_prompt("m", {"chat_template": template}, {"messages": [said]}) == "12345678901234567890123"


def test_a_template_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InvalidRequest, match="the chat template of model 'm' cannot be read"):
        chat_prompt("m", {"chat_template": "{% for %}"}, {"messages": HI})


@pytest.mark.parametrize("source", ["{% set n = namespace(_a=1) %}", "{% set n = namespace() %}{% set n._a = 1 %}"])
def test_namespace_has_no_names_with_an_underscore(source: str) -> None:
    with pytest.raises(InvalidRequest, match="a namespace cannot have the name '_a'"):
        chat_prompt("m", {"chat_template": source}, {"messages": HI})
    fine = source.replace("_a", "self") + "{{ n.self }}"
    assert chat_prompt("m", {"chat_template": fine}, {"messages": HI}) == "1"
