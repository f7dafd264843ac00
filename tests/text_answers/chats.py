"""Chat templates of the shapes that models ship, and what transformers renders: `python -m tests.text_answers.chats`.

It needs transformers 4, which leaves a content that is null as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

RECORDED = Path(__file__).parent / "chats.json"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class Chat(NamedTuple):
    """`template` is a text, or several by name. `call` are members of the body."""

    template: str | Mapping[str, str]
    messages: list[dict[str, Any]]
    call: Mapping[str, Any] = {}


HI = [{"role": "user", "content": "hi"}]
TALK = [
    {"role": "system", "content": "Be brief.  "},
    {"role": "user", "content": ' What\'s <up> & "how"? é '},
    {"role": "assistant", "content": "Fine."},
    {"role": "user", "content": "Good\nnight"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "temperature",
            "description": "of a <city> & the user's: é",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "at": {"type": "string"}}},
        },
    }
]
CALLED = [
    {"role": "user", "content": "how warm?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "temperature", "arguments": {"city": "Rome", "at": 1}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "temperature", "content": "21"},
]
MARKED = """{% for m in messages %}
<|{{ m.role }}|>
{{ m['content'] | trim }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}"""
INSTRUCTED = """{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}
{% if m.role == 'system' %}{% set ns.system = m.content | trim %}{% elif m.role == 'user' %}
[I] {% if loop.first or ns.system %}{{ ns.system }} {% set ns.system = '' %}{% endif %}{{ m.content }} [/I]
{% else %}{{ m.content ~ eos_token }}{% endif %}{% endfor %}"""
CALLING = """{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}
<call>{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</call>
{% endfor %}{% elif m.role == 'tool' %}<result>{{ m.content }}</result>
{% else %}{{ m.role }}:{{ m.content if m.content is not none else 'NOTHING' }}
{% endif %}{% endfor %}"""
ARGUMENTS = """{% for c in messages[1].tool_calls %}{% for k, v in c.function.arguments.items() -%}
<p={{ k }}>{{ v if v is string else v | tojson }}</p>{% endfor %}{% endfor %}"""
LIMITED = (
    "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}"
)
MACROS = """{%- macro shown(tool) -%}
{{ tool.name }}({% for n, p in tool.parameters.properties.items() -%}
{{ n }}: {{ p.type }}{{ ', ' if not loop.last }}{% endfor %})
{%- endmacro -%}
{% for t in tools %}{{ shown(t.function) }}: {{ t.function.description }}{% endfor %}"""

PARTS = [
    {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]},
    {"role": "assistant", "content": "three"},
]
SHOWN = """{% macro shown(content) %}{% if content is string %}{{ content | trim }}{% else %}{% for part in content -%}
{% if part.type == 'text' %}[{{ part.text }}]{% endif %}{% endfor %}{% endif %}{% endmacro -%}
{% for m in messages %}<{{ m.role }}>{{ shown(m.content) }}{% endfor %}"""
SELECTED = """{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else -%}
{{ m['content'] | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('+') }}{% endif %}
|{% endfor %}"""
# A macro that calls itself and another one, as templates do that write a JSON schema in another language.
NESTED = """{%- macro kind(p) -%}
{%- if p.type is string and p.type in ('string', 'integer') -%}{{ {'string': 'text', 'integer': 'int'}[p.type] }}
{%- elif p.type == 'array' -%}{{ kind(p['items']) }}[]
{%- elif p.type == 'object' -%}{{ '{' }}{{ fields(p) }}{{ '}' }}
{%- else -%}any{%- endif -%}
{%- endmacro -%}
{%- macro fields(o) -%}
{%- for name, p in o.properties | dictsort -%}{{ name }}{{ '' if name in (o.required or []) else '?' }}: {{ kind(p) }}
{{- ', ' if not loop.last }}{%- endfor -%}
{%- endmacro -%}
{% for t in tools %}{{ t.function.name }}({{ fields(t.function.parameters) }}) {% endfor %}"""
SCHEMA = {
    "type": "object",
    "properties": {
        "when": {"type": "string"},
        "at": {"type": "object", "properties": {"x": {"type": "integer"}, "all": {"type": "array", "items": {}}}},
        "names": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["when"],
}
DEEP = [{"type": "function", "function": {"name": "find", "parameters": SCHEMA}}]
# Thinks are shown for what was said after the last question only.
THINKING = """{%- set ns = namespace(last=-1, many=false) -%}
{%- for m in messages[::-1] -%}{%- if m.role == 'user' and ns.last < 0 -%}
{%- set ns.last = (messages | length - 1) - loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- set content = m.content if m.content is string else '' -%}
{%- if '</t>' in content -%}{%- set thought = content.split('</t>')[0].rstrip('\n').split('<t>')[-1].lstrip('\n') -%}
{%- set content = content.split('</t>')[-1].lstrip('\n') -%}{%- else -%}{%- set thought = none -%}{%- endif -%}
{{- '<' ~ m.role ~ '>' -}}
{%- if thought is not none and loop.index0 > ns.last -%}{{ '(' + thought + ')' }}{%- endif -%}{{ content + '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{{ '' if enable_thinking is not defined or enable_thinking else '()' }}
{%- endif -%}"""
THOUGHT = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "<t>\nfirst\n</t>\n\nb"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "<t>\nsecond\n</t>\n\nd"},
]
RESULTS = """{% for m in messages %}{% if m.role == 'tool' -%}
{% if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}<results>{% endif %}
{{ m.content if m.content is string else m.content | map(attribute='text') | join(', ') }};
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}</results>{% endif %}
{% else %}{{ m.role }}{{ ': ' ~ m.content if m.content is defined and m.content is not none }}
{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson(indent=1) }}{% endfor %}
{% endif %}{% endfor %}"""
CALLS = [
    {"role": "user", "content": "how warm?"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"b": [1, {"c": None}], "é": "<"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "21"},
    {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "22"}, {"type": "text", "text": "23"}]},
]
STRICT = """{{ bos_token }}{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}
{% set first = messages[0].content %}{% else %}{% set rest = messages %}{% set first = '' %}{% endif %}
{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('not in turn') }}{% endif %}
{% if loop.first and first %}[{{ first | trim }}]{% endif -%}
{{ m.content | replace('n', 'N') | title if loop.last else m.content }}
{{- loop.cycle('/', '-') }}{% endfor %}"""
BLOCKS = """{%- if tools is defined and tools -%}
{{ tools | map(attribute='function') | map(attribute='name') | sort | join('|') }}
{%- endif -%}{%- for m in messages | rejectattr('role', 'equalto', 'system') | list -%}
{%- filter upper -%}{{ m.role }}{%- endfilter -%}:{{ '%s' | format(m.content) }}{{ "\n" }}{%- endfor -%}
{%- for group in messages | groupby('role') -%}{{ group.grouper }}={{ group.list | length }};{%- endfor -%}
{%- set found = messages | selectattr('role', 'in', ['system', 'developer']) | first | default({}, true) -%}
{{ found.content | default('no', true) | trim | e }}"""

CHATS: Mapping[str, Chat] = {
    "parts in a macro": Chat(SHOWN, PARTS),
    "parts that are chosen": Chat(SELECTED, PARTS),
    "parts of the first": Chat("{{ messages[0].content[0].text }}{{ messages[1]['content'][-1]['text'] }}", PARTS),
    "parts, continued": Chat(SHOWN, PARTS[:2], {"continue_final_message": True}),
    "macros that call each other": Chat(NESTED, HI, {"tools": DEEP}),
    "thoughts": Chat(THINKING, THOUGHT),
    "no thoughts": Chat(THINKING, THOUGHT[:3], {"chat_template_kwargs": {"enable_thinking": False}}),
    "results of tools": Chat(RESULTS, CALLS),
    "turns": Chat(STRICT, TALK),
    "filters": Chat(BLOCKS, TALK, {"tools": TOOLS}),
    "documents and tools by name": Chat(
        {"default": "d", "rag": "{{ documents | map(attribute='title') | join }}", "tool_use": "t"},
        HI, {"documents": [{"title": "a"}, {"title": "b"}], "chat_template": "rag"},
    ),
    "marked": Chat(MARKED, TALK),
    "marked without prompt": Chat(MARKED, TALK, {"add_generation_prompt": False}),
    "instructed": Chat(INSTRUCTED, TALK),
    "tojson": Chat("{{ tools | tojson }}", HI, {"tools": TOOLS}),
    "tojson indented": Chat("{{ tools | tojson(indent=2) }}", HI, {"tools": TOOLS}),
    "tojson sorted": Chat("{{ tools | tojson(sort_keys=True, ensure_ascii=True) }}", HI, {"tools": TOOLS}),
    "tojson dense": Chat("{{ tools | tojson(separators=(',', ':')) }}", HI, {"tools": TOOLS}),
    "tojson beside text": Chat("{{ '<tools>' + (tools | tojson) + '</tools>' }}", HI, {"tools": TOOLS}),
    "calls": Chat(CALLING, CALLED),
    "arguments": Chat(ARGUMENTS, CALLED),
    "macros": Chat(MACROS, HI, {"tools": TOOLS}),
    "break and continue": Chat(LIMITED, TALK),
    "generation": Chat("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", TALK),
    "kwargs": Chat("{{ enable_thinking }} {{ missing is defined }}", HI,
                   {"chat_template_kwargs": {"enable_thinking": False}}),
    "documents": Chat("{% for d in documents %}{{ loop.index }}. {{ d.title }}: {{ d.text }}\n{% endfor %}", HI,
                      {"documents": [{"title": "a", "text": "b"}, {"title": "c", "text": "d"}]}),
    "continued": Chat(MARKED, TALK[:3], {"continue_final_message": True}),
    "continued, trimmed": Chat("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", TALK[:3],
                               {"continue_final_message": True}),
    "for tools": Chat({"default": "plain", "tool_use": "{{ tools | length }} tools"}, HI, {"tools": TOOLS}),
    "default of several": Chat({"default": "plain {{ messages[0].content }}", "tool_use": "tools"}, HI),
    "named": Chat({"default": "plain", "rag": "rag {{ messages[0].content }}"}, HI, {"chat_template": "rag"}),
    "slices and methods": Chat("{{ messages[::-1][0].content.split()[-1].upper() }}{{ messages[1:] | length }}", TALK),
    "tokens": Chat("{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}", HI),
    "dates": Chat("{{ strftime_now('%Y') | length }}", HI),
}  # fmt: skip


def main() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    found = {}
    for name, chat in CHATS.items():
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), **TOKENS
        )
        tokenizer.chat_template = chat.template if isinstance(chat.template, str) else dict(chat.template)
        call = dict(chat.call)
        options = call.pop("chat_template_kwargs", {})
        call.setdefault("add_generation_prompt", "continue_final_message" not in call)
        found[name] = tokenizer.apply_chat_template(chat.messages, tokenize=False, **call, **options)
    RECORDED.write_text(json.dumps({"by": f"transformers {version('transformers')}", "chats": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
