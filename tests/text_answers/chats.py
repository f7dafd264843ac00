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

CHATS: Mapping[str, Chat] = {
    "marked": Chat(MARKED, TALK),
    "marked without prompt": Chat(MARKED, TALK, {"add_generation_prompt": False}),
    "instructed": Chat(INSTRUCTED, TALK),
    "tojson": Chat("{{ tools | tojson }}", HI, {"tools": TOOLS}),
    "tojson indented": Chat("{{ tools | tojson(indent=2) }}", HI, {"tools": TOOLS}),
    "tojson sorted": Chat("{{ tools | tojson(sort_keys=True, ensure_ascii=True) }}", HI, {"tools": TOOLS}),
    "tojson dense": Chat("{{ tools | tojson(separators=(',', ':')) }}", HI, {"tools": TOOLS}),
    "tojson beside text": Chat("{{ '<tools>' + (tools | tojson) + '</tools>' }}", HI, {"tools": TOOLS}),
    "calls": Chat(CALLING, CALLED, {"tools": TOOLS}),
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
