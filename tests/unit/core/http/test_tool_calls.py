"""Calls of tools are taken out of a text, whatever its pieces are; requests say which calls there may be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trident.core.errors import InvalidRequest
from trident.core.http.tool_calls import CallForm, Calls, Tools, tools_of, with_allowed_tools

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look", "go")]
LOOK = '{"name": "look", "arguments": {"at": "}; <é>"}}'
GO = '{"name": "go", "parameters": {}}'
RUN = '<tool_call>{"name": "run", "arguments": {}}</tool_call> b'
LOOKED, GONE = ("look", {"at": "}; <é>"}), ("go", {})
LARGE = '{"at":12345678901234567890123,"a":"é"}'


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (CallForm.HERMES, f"<tool_call>\n{LOOK}\n</tool_call>", "", [LOOKED]),
        (
            CallForm.HERMES, f"I see. \n<tool_call>{GO}</tool_call>\n<tool_call>\n{LOOK}</tool_call>\n", "I see.",
            [GONE, LOOKED],
        ),
        (CallForm.HERMES, f"<tool_call>{LOOK}", "", [LOOKED]),
        (CallForm.HERMES, f"a <tool_call>{LOOK[:-2]}", f"a <tool_call>{LOOK[:-2]}", []),
        (CallForm.HERMES, "1 < 2 <tool> ", "1 < 2 <tool> ", []),
        (CallForm.HERMES, RUN, RUN, []),
        (CallForm.LLAMA, f"<|python_tag|>{GO}", "", [GONE]),
        (CallForm.LLAMA, f" {LOOK}; {GO}", "", [LOOKED, GONE]),
        (CallForm.LLAMA, '{"a": 1}', '{"a": 1}', []),
        (CallForm.LLAMA, "<| no {", "<| no {", []),
        (CallForm.MISTRAL, f"[TOOL_CALLS] [{LOOK}, {GO}]", "", [LOOKED, GONE]),
        (CallForm.MISTRAL, f"[{GO}]", "", [GONE]),
        (CallForm.MISTRAL, "[1] says so", "[1] says so", []),
        (CallForm.MISTRAL, '[TOOL_CALLS]go[CALL_ID]a1[ARGS]{}[TOOL_CALLS]look[ARGS]{"at": "}; <é>"}', "",
         [GONE, LOOKED]),
        (CallForm.MISTRAL, 'So. [TOOL_CALLS]look{"at": "}; <é>"}', "So.", [LOOKED]),
        (CallForm.MISTRAL, 'go{}look {"at": "}; <é>"}', "", [GONE, LOOKED]),
        (CallForm.MISTRAL, '[TOOL_CALLS][{"name": "go"}]', "", [GONE]),
        *(
            (CallForm.MISTRAL, text, text, [])
            for text in ("go on", "looks {", '[TOOL_CALLS]go{"a": ', "[TOOL_CALLS]run{}", "a[TOOL_CALLS", "go{} on")
        ),
        (CallForm.LLAMA, "[go(), look(at='}; <é>')]", "", [GONE, LOOKED]),
        (CallForm.LLAMA, '<|python_tag|>look.call(at="}; <é>")', "", [LOOKED]),
        (CallForm.LLAMA, 'So. <|python_tag|>[look(at="}; <é>")]', "So.", [LOOKED]),
        (
            CallForm.LLAMA, "[go(a=true, b=[None, -1.5, (1,)], c={'d': \"e\"})]", "",
            [("go", {"a": True, "b": [None, -1.5, [1]], "c": {"d": "e"}})],
        ),
        *(
            (CallForm.LLAMA, text, text, [])
            for text in (
                "[go(1)]", "[go(a=b)]", "[go(**{})]", "[go(a={1: 2})]", "[go(a=1e999)]", "[go(a=b'')]", "[run()]",
                "[go() for a in b]", "[go(a='\\d', a=", "<|python_tag|>print(1)", "[a.b()]", "[" * 500, "[go(a='\0",
            )
        ),
        (CallForm.MISTRAL, "", "", []),
        (CallForm.LIST, f"[{GO}]", "", [GONE]),
        *(
            (form, text.format(LARGE), "", [("go", LARGE)])
            for form, text in (
                (CallForm.HERMES, '<tool_call>{{"name": "go", "arguments": {}}}</tool_call>'),
                (CallForm.MISTRAL, "[TOOL_CALLS]go{}"),
                (CallForm.LIST, '[{{"name": "go", "parameters": {}}}]'),
            )
        ),
        (CallForm.LIST, f"[{GO}", f"[{GO}", []),
        (CallForm.ARGUMENTS, '{"at": 1', "", [("look", '{"at": 1')]),
    ],
)  # fmt: skip
def test_tool_calls_are_extracted_from_the_text(
    form: CallForm, text: str, content: str, calls: list[tuple[str, Any]], size: int
) -> None:
    taker = Calls(Tools(form, ("look", "go"), True, None))
    pieces = [taker.add(text[at : at + size]) for at in range(0, len(text), size)] + [taker.end()]
    found = [call for _, each in pieces for call in each]
    assert "".join(piece for piece, _ in pieces) == content
    assert [call["function"]["name"] for call in found] == [name for name, _ in calls]
    for at, (call, (_, arguments)) in enumerate(zip(found, calls, strict=True)):
        given = call["function"]["arguments"]
        assert call["index"] == at
        assert given == arguments if isinstance(arguments, str) else json.loads(given) == arguments
    assert len({call["id"] for call in found}) == len(found)


def test_only_one_call_is_extracted_without_parallel_calls() -> None:
    body = {"tools": TOOLS, "parallel_tool_calls": False}
    tools = tools_of(body, "{% if tools %}<tool_call>{% endif %}", can_guide=False)
    assert tools is not None
    content, calls = Calls(tools).add(f"<tool_call>{GO}</tool_call>" * 2)
    assert (content, len(calls)) == ("", 1)
    forced = tools_of({**body, "tool_choice": "required"}, "", can_guide=True)
    assert forced is not None
    assert (forced.guide or {})["maxItems"] == 1


def test_call_ids_have_the_length_of_mistrals_templates() -> None:
    for choice, written in (("auto", "[TOOL_CALLS]go{}"), ("required", f"[{GO}]")):
        tools = tools_of({"tools": TOOLS, "tool_choice": choice}, "[TOOL_CALLS]", can_guide=True)
        assert tools is not None
        taker = Calls(tools)
        taker.add(written)
        _, (call,) = taker.end()
        assert len(call["id"]) == 9
        assert call["id"].isalnum()


@pytest.mark.parametrize(
    ("body", "template"),
    [
        ({"tools": TOOLS}, "{{ messages }}"),
        ({}, "<tool_call>"),
        ({"tools": TOOLS, "tool_choice": "none"}, "<tool_call>"),
    ],
)
def test_malformed_calls_stay_text(body: dict[str, Any], template: str) -> None:
    assert tools_of(body, template, can_guide=True) is None


def test_schema_definitions_are_moved_to_the_root() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": schema}}, *TOOLS[1:]]
    found = tools_of({"tools": tools, "tool_choice": "required"}, "", can_guide=True)
    assert found is not None
    assert (found.guide or {})["$defs"] == schema["$defs"]


@pytest.mark.parametrize(
    ("members", "can_guide", "message"),
    [
        ({"tool_choice": "required"}, True, "there are no 'tools'"),
        ({"tools": [*TOOLS, {"type": "custom", "custom": {"name": "a"}}]}, True, "tool 2 in 'tools' is not a function"),
        ({"tools": [{"type": "function", "name": "a"}]}, True, "tool 0 in 'tools' is not a function"),
        ({"tools": [{"type": "function", "function": {"name": 5}}]}, True, "tool 0 in 'tools' is not a function"),
        ({"tools": TOOLS, "tool_choice": "required"}, False, "this model cannot be made to call"),
        ({"tools": TOOLS, "tool_choice": "any"}, True, "'tool_choice' is \"any\", which names none of the tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "a"}}}, True, "none of the tools"),
        ({"tools": [{"function": {"name": "a", "parameters": [1]}}], "tool_choice": "required"}, True, "tool 'a' must"),
    ],
)  # fmt: skip
def test_unsupported_tool_choices_are_refused(members: dict[str, Any], can_guide: bool, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        tools_of(members, "", can_guide)


def test_allowed_tools_are_the_tools_of_the_chat() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("look", "go", "stay")]
    for mode in ("auto", "required"):
        allowed = {"mode": mode, "tools": [tools[2], tools[0]]}
        body = {"tools": tools, "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}
        assert with_allowed_tools(body) == {"tools": [tools[0], tools[2]], "tool_choice": mode}
    assert with_allowed_tools({"tools": tools, "tool_choice": "auto"})["tools"] == tools


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        (None, "must have 'mode', auto or required"),
        ({"mode": "any", "tools": [{"function": {"name": "look"}}]}, "must have 'mode', auto or required"),
        ({"mode": "auto", "tools": []}, "a list with at least one"),
        ({"mode": "auto", "tools": [{"function": {"name": "fly"}}]}, 'has "fly", which names none of the tools'),
        ({"mode": "auto", "tools": ["look"]}, "has null, which names none of the tools"),
    ],
)
def test_allowed_tools_that_are_not_there_are_refused(allowed: object, message: str) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    with pytest.raises(InvalidRequest, match=message):
        with_allowed_tools({"tools": [{"type": "function", "function": {"name": "look"}}], "tool_choice": choice})
