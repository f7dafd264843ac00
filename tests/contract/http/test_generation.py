"""Folders of ONNX Runtime GenAI: a server, OpenAI's client and tritonclient, and a model that counts to twelve."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
import openai
import pytest
import requests
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError
from tokenizers import Tokenizer, processors
from tritonclient.grpc import InferenceServerClient, InferInput

from docs.lists import generation_options
from tests.contract.servers.ports import free_ports
from tests.contract.servers.server import ServerProcess
from tests.genai_folders import PAD, WORDS, word_ids, write_adapter, write_counter
from tests.waiting import until
from trident.core.http.completions import MEMBERS

# One sequence at a time: a second one begins when the first has ended.
ONE = 'backend: "genai" parameters { key: "max_sequences" value { string_value: "1" } }'


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("generation")
    write_adapter(write_counter(folder / "models" / "counter"))
    write_counter(folder / "models" / "endless" / "1", context=4096, is_endless=True)
    (folder / "models" / "endless" / "config.pbtxt").write_text(ONE)
    tokenizer = str(write_counter(folder / "models" / "begins") / "tokenizer.json")
    begins = Tokenizer.from_file(tokenizer)
    begins.post_processor = processors.TemplateProcessing(single=f"{PAD} $A", special_tokens=[(PAD, 1)])
    begins.save(tokenizer)
    port, vertex_port, azureml_port = free_ports(3)
    azureml = ("--allow-azureml=true", f"--azureml-port={azureml_port}", "--azureml-default-model=counter")
    sagemaker = ("--platform=plain", "--allow-sagemaker=true", f"--sagemaker-port={port}")
    vertex = ("--allow-vertex-ai=true", f"--vertex-ai-port={vertex_port}", "--vertex-ai-default-model=counter")
    routes = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
    environment = {**os.environ, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "counter", **routes}
    options = ("--shutdown-grace-secs=0", *sagemaker, *vertex, *azureml)
    with ServerProcess(folder / "models", folder / "log", *options, environment=environment) as made:
        made.sagemaker = f"http://127.0.0.1:{port}/invocations"  # type: ignore[attr-defined]
        made.azureml = f"http://127.0.0.1:{azureml_port}/score"  # type: ignore[attr-defined]
        made.vertex = f"http://127.0.0.1:{vertex_port}/predict"  # type: ignore[attr-defined]
        yield made


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def ids(server: ServerProcess) -> list[int]:
    """The tokens of WORDS."""
    return word_ids(Tokenizer.from_file(str(server.repository / "counter" / "tokenizer.json")))


def count_of(server: ServerProcess, name: str) -> float:
    lines = requests.get(f"http://127.0.0.1:{server.metrics_port}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f'{name}{{model="counter"'))


def test_tokens_are_counted(server: ServerProcess, client: Any) -> None:  # the first test, so that nothing else is
    client.completions.create(model="counter", prompt=" one two", max_tokens=3)
    until(lambda: count_of(server, "genai_generated_tokens_total") == 3)
    assert count_of(server, "genai_prompt_tokens_total") == 2


def test_text_is_generated_until_a_stop_condition(client: Any) -> None:
    answer = client.completions.create(model="counter", prompt=" one two")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("".join(f" {w}" for w in WORDS[2:]), "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 11)
    answer = client.completions.create(model="counter", prompt=" one two", max_tokens=3)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (" three four five", "length")
    answer = client.completions.create(model="counter", prompt=" one two", stop=["six", "fi"])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (" three four ", "stop")
    answer = client.completions.create(model="counter", prompt=" one two", stop="[INST]", max_tokens=1)
    assert answer.choices[0].text == " three"


def test_stop_strings_are_included_on_request(client: Any, ids: list[int]) -> None:
    five = ids[WORDS.index("five")]
    for stop in ({"stop": " five"}, {"extra_body": {"stop_token_ids": [five]}}):
        for is_in in (False, True):
            more = {**stop.get("extra_body", {}), "include_stop_str_in_output": is_in}
            asked = {**stop, "extra_body": more}
            (choice,) = client.completions.create(model="counter", prompt=" one two", **asked).choices
            assert (choice.text, choice.finish_reason) == (" three four five" if is_in else " three four", "stop")


def test_text_goes_on_past_its_end_on_request(client: Any) -> None:
    def ask(prompt: str, **options: Any) -> tuple[str, int]:
        answer = client.completions.create(model="counter", prompt=prompt, extra_body=options)
        assert answer.choices[0].text.startswith(" eleven twelve")
        return answer.choices[0].finish_reason, answer.usage.completion_tokens

    options = [("stop", {}), ("length", {"ignore_eos": True, "max_tokens": 9}), ("stop", {"min_tokens": 7})]
    with ThreadPoolExecutor(6) as pool:
        found = pool.map(
            lambda each: ask(each[0], **each[1]), [(p, o) for _, o in options for p in (" ten", " nine ten")]
        )
        assert [*found] == [(reason, size) for (reason, _), size in zip(options, (3, 9, 8), strict=True) for _ in "ab"]
    assert ask(" ten", ignore_eos=True) == ("length", 63)


def test_chat_is_streamed_with_the_folders_template(client: Any) -> None:
    messages = [{"role": "user", "content": "three"}]
    stream = client.chat.completions.create(
        model="counter", messages=messages, max_completion_tokens=2, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert [choice.delta.content for chunk in chunks for choice in chunk.choices] == [" four", " five", ""]
    assert (chunks[-2].choices[0].finish_reason, chunks[-1].usage.total_tokens) == ("length", 3)


def test_concurrent_streams_get_their_own_answers(client: Any) -> None:
    def ask(at: int) -> tuple[str, str]:
        stream = client.completions.create(model="counter", prompt=f" {WORDS[at]}", stream=True)
        return "".join(chunk.choices[0].text for chunk in stream), "".join(f" {word}" for word in WORDS[at + 1 :])

    with ThreadPoolExecutor(8) as pool:
        for text, expected in pool.map(ask, range(11)):
            assert text == expected


def test_same_seed_gives_the_same_answer(client: Any) -> None:
    def ask(seed: int) -> str:
        answer = client.completions.create(
            model="counter", prompt=" one", temperature=50, seed=seed, max_tokens=40, extra_body={"top_k": -1}
        )
        return str(answer.choices[0].text)

    assert ask(7) == ask(7)
    assert len({ask(seed) for seed in range(5)}) > 1


def test_prompt_has_the_tokenizers_special_tokens_and_chat_the_templates(client: Any) -> None:
    asked: dict[str, Any] = {"model": "begins", "max_tokens": 1}
    whole = client.completions.create(**asked, prompt=" one")
    bare = client.completions.create(**asked, prompt=" one", extra_body={"add_special_tokens": False})
    chat = client.chat.completions.create(**asked, messages=[{"role": "user", "content": "one"}])
    assert [each.usage.prompt_tokens for each in (whole, bare, chat)] == [2, 1, 1]


def test_prompts_are_texts_or_token_ids(client: Any, ids: list[int]) -> None:
    for prompt in ([" one two", " five"], [ids[:2], ids[4:5]]):
        answer = client.completions.create(model="counter", prompt=prompt, max_tokens=2)
        assert [choice.text for choice in answer.choices] == [" three four", " six seven"]
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)
    assert client.completions.create(model="counter", prompt=ids[:2], max_tokens=1).choices[0].text == " three"


@pytest.mark.parametrize("streams", [False, True])
def test_logprobs_match_the_logits(client: Any, ids: list[int], streams: bool) -> None:
    """The model's logits are 24 for the next word and 0 for all other tokens; another stream is in its batch."""
    size = 296
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.completions.create, model="counter", prompt=" one")
        asked = {"model": "counter", "prompt": [" eleven", ids[7:8]], "logprobs": 2, "temperature": 1, "seed": 3}
        answer = client.completions.create(**asked, stream=streams)
        choices = [choice for chunk in answer for choice in chunk.choices] if streams else answer.choices
        assert other.result().choices[0].logprobs is None
    for index, words in enumerate((WORDS[11:], WORDS[8:])):
        found = [each.logprobs for each in choices if each.index == index and each.logprobs]
        assert [token for each in found for token in each.tokens] == [f" {word}" for word in words]
        assert [offset for each in found for offset in each.text_offset][:2] == [0, len(words[0]) + 1][: len(words)]
        chosen = -np.log1p((size - 1) * np.exp(-24.0))
        for each in found:
            np.testing.assert_allclose(each.token_logprobs, chosen, atol=1e-6)
            assert [len(place) for place in each.top_logprobs] == [2] * len(each.tokens)
            assert all(min(place.values()) == pytest.approx(chosen - 24) for place in each.top_logprobs)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
def test_the_client_of_the_hub_gets_tokens_with_their_likelihoods(
    server: ServerProcess, ids: list[int], path: str
) -> None:
    hub = InferenceClient(model=f"http://{server.address}{path}")
    asked: dict[str, Any] = {"details": True, "stream": path != "/generate", "top_n_tokens": 1}
    with pytest.raises(BadRequestError, match="'model' must be the name of a model"):
        list(hub.text_generation(" ten", **asked))
    sent = {"inputs": " ten", "model": "counter", "stream": asked["stream"], "parameters": {"details": True}}
    found = requests.post(f"http://{server.address}{path}", json=sent)
    if path == "/generate":
        answer = found.json()
        assert answer["generated_text"] == " eleven twelve"
        tokens, details = answer["details"].pop("tokens"), answer["details"]
        assert details == {"finish_reason": "eos_token", "generated_tokens": 3, "seed": None, "prefill": []}
    else:
        events = [json.loads(line.removeprefix("data: ")) for line in found.text.split("\n\n") if line]
        tokens = [each["token"] for each in events]
        assert [each["index"] for each in events] == [1, 2, 3]
        assert [each["generated_text"] for each in events] == [None, None, " eleven twelve"]
        ended = {"finish_reason": "eos_token", "generated_tokens": 3, "seed": None, "input_length": 1}
        assert [each["details"] for each in events] == [None, None, ended]
    assert [each["text"] for each in tokens] == [" eleven", " twelve", "<end>"]
    assert [each["special"] for each in tokens] == [False, False, True]
    assert [each["id"] for each in tokens] == [*ids[10:], 0]
    assert all(each["logprob"] == pytest.approx(0, abs=1e-6) for each in tokens)


@pytest.mark.parametrize("streams", [False, True])
def test_tgi_clients_get_the_stop_string_in_the_text(server: ServerProcess, streams: bool) -> None:
    more = {"stop": ["ele"], "return_full_text": True, "seed": 3, "top_n_tokens": 2, "details": True}
    sent = {"inputs": " nine", "model": "counter", "parameters": more, "stream": streams}
    found = requests.post(f"http://{server.address}/generate", json=sent).text.removesuffix("\n\n")
    last = json.loads(found.split("\n\n")[-1].removeprefix("data: "))
    assert last["generated_text"] == " nine ten ele"
    assert last["details"].items() >= {"finish_reason": "stop_sequence", "generated_tokens": 2, "seed": 3}.items()
    likeliest = last["top_tokens"] if streams else last["details"]["top_tokens"][-1]
    assert [each["text"] for each in likeliest] == [" eleven", "<end>"]
    guided = {**sent, "parameters": {"grammar": {"type": "regex", "value": " (one|two)"}}, "stream": False}
    assert requests.post(f"http://{server.address}/generate", json=guided).json() == {"generated_text": " one"}


def test_the_client_of_the_hub_chats(server: ServerProcess) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "three"}], "max_tokens": 2}
    hub = InferenceClient(model=f"http://{server.address}")
    answer = requests.post(
        f"http://{server.address}/", json={"inputs": " one", "model": "counter", "max_new_tokens": 2}
    )
    assert answer.json() == [{"generated_text": " two three"}]
    with pytest.raises(BadRequestError, match="'model' must be the name of a model"):  # there are two
        hub.chat_completion(**asked)
    pieces = hub.chat_completion(**asked, extra_body={"model": "counter"}, stream=True)
    assert "".join(piece.choices[0].delta.content for piece in pieces) == " four five"


def test_an_adapter_is_named_by_the_request(client: Any) -> None:
    answer = client.completions.create(
        model="counter", prompt=" five", max_tokens=3, extra_body={"adapter": "backwards"}
    )
    assert answer.choices[0].text == " four three two"
    with pytest.raises(openai.BadRequestError, match="no adapter 'other': the model has backwards"):
        client.completions.create(model="counter", prompt=" five", extra_body={"adapter": "other"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": " one" * 64}, "the prompt is too long: it has 64 tokens, the model takes 63"),
        ({"prompt": ""}, "'text_input' is empty"),
        ({"prompt": [5, 5000]}, "there is no token id 5000: the model's vocabulary has 0 to 295"),
        ({"prompt": [2**40]}, "'prompt_token_ids' must be of INT32"),
        ({"prompt": " one", "logprobs": 21}, "'logprobs' is 21: it must be a whole number from 0 to 20"),
        ({"prompt": " one", "temperature": -1}, "'temperature' is -1"),
        ({"prompt": " one", "max_tokens": 0}, "'max_tokens' is 0"),
        ({"prompt": " one", "stop": ["a", ""]}, "'stop' is ['a', '']: it must be a text, or a list"),
        ({"prompt": " one", "frequency_penalty": 1}, "'frequency_penalty' is not supported"),
        ({"prompt": " one", "echo": True}, "'echo' is not supported"),
        *(
            ({"prompt": " one", "extra_body": {name: value}}, f"'{name}' is not supported")
            for name, value in (
                ("skip_special_tokens", False),
                ("logit_bias", {"5": 1}),
            )
        ),
        *(
            ({"prompt": " one", "extra_body": {name: value}}, message)
            for name, value, message in (
                ("min_tokens", 64, "'min_tokens' is 64: at most 63 tokens are generated"),
                ("ignore_eos", 1, "'ignore_eos' is 1: it must be true or false"),
                ("guided_regex", "(", "the text cannot be guided: Error creating grammar"),
                ("guided_regex", "one\0", "the text cannot be guided: it has a NUL character"),
                ("guided_regex", 5, "'guided_regex' cannot be read: it must be a text"),
                ("guided_json", "{", "'guided_json' cannot be read"),
                ("guided_choice", [], "'guided_choice' cannot be read: it must be a list of texts"),
                ("guided_grammar", "a" * 70000, "a grammar of more than 65536 characters"),
                ("structured_outputs", {"structural_tag": "a"}, "'structural_tag', which is not supported"),
                ("structured_outputs", {"regex": "a", "choice": ["b"]}, "both guide the text: send one"),
                ("response_format", {"type": "yaml"}, "'response_format' has the type 'yaml'"),
                (
                    "response_format",
                    {"type": "text", "value": 5},
                    "of the type text has 'value', which is not supported",
                ),
                (
                    "response_format",
                    {"type": "json_schema"},
                    "'response_format' cannot be read: it must be a JSON schema",
                ),
            )
        ),
        ({"prompt": " one", "extra_body": {"stop_token_ids": [5000]}}, "must be a list of token ids below 296"),
        ({"prompt": " one", "stop": "a", "extra_body": {"min_tokens": 2}}, "'min_tokens' is not supported beside"),
        *(
            ({"prompt": " one", "extra_body": {**option, "guided_regex": "a"}}, "says how the text ends")
            for option in ({"min_tokens": 2}, {"ignore_eos": True})
        ),
    ],
)
def test_invalid_generation_request_is_refused(client: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="counter", **arguments)
    assert message in caught.value.body["message"]


# What the bodies of OpenAI's routes have, by openai 3.57, and what vLLM adds.
DOCUMENTED = {
    "/completions": """best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop
        stream stream_options suffix temperature top_p user""",
    "/chat/completions": """audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens
        max_tokens metadata modalities moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key
        prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier
        stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity
        web_search_options""",
}
VLLM = """use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids ignore_eos
    include_stop_str_in_output
    min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens prompt_logprobs
    allowed_token_ids bad_words echo add_generation_prompt continue_final_message add_special_tokens documents
    chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs structured_outputs guided_decoding_backend
    guided_whitespace_pattern structural_tag priority request_id return_tokens_as_token_ids return_token_ids cache_salt
    kv_transfer_params vllm_xargs include_reasoning thinking_token_budget logits_processors prompt_embeds"""


@pytest.mark.parametrize("route", DOCUMENTED)
def test_unsupported_members_are_refused_by_name(client: Any, route: str) -> None:
    options = generation_options()
    known = {*MEMBERS[f"/v1{route}"], *options["_KNOWN"], *options["_WITHOUT_EFFECT"]}
    asked = {"messages": [{"role": "user", "content": "one"}]} if "chat" in route else {"prompt": " one"}
    others = {*DOCUMENTED[route].split(), *VLLM.split(), "messages", "prompt", "nonsense"} - known
    for name in sorted(others):
        with pytest.raises(openai.BadRequestError, match=f"'{name}' is not supported"):
            client.post(route, body={"model": "counter", **asked, name: 3}, cast_to=object)
    for name, value in options["_UNSUPPORTED"].items():
        client.post(route, body={"model": "counter", **asked, name: value, "max_tokens": 1}, cast_to=object)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_logprobs": 2}, "'top_logprobs' needs 'logprobs' to be true"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "'max_tokens' and 'max_completion_tokens' differ"),
        ({"stream_options": {"continuous_usage_stats": True}}, "'continuous_usage_stats' of 'stream_options' is not"),
        ({"stream_options": True}, "'stream_options' must be an object"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "'include_usage' of 'stream_options' is not"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "rules": 1}}},
            "'json_schema' of 'response_format' has 'rules', which is not supported",
        ),
        ({"stream": "yes"}, "'stream' must be true or false"),
        ({"include_stop_str_in_output": "yes"}, "'include_stop_str_in_output' is 'yes': it must be true or false"),
        ({"do_sample": True, "temperature": 0}, "the likeliest token is not a sample"),
    ],
)
def test_meaningless_members_are_refused(client: Any, options: dict[str, Any], message: str) -> None:
    body = {"model": "counter", "messages": [{"role": "user", "content": "one"}], **options}
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body=body, cast_to=object)
    assert message in caught.value.body["message"]


NUMBER = {"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"], "additionalProperties": False}
DATE = '"date" is \\ "é"\n'


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": NUMBER}}}, '{"a":7}'),
        ({"guided_json": json.dumps(NUMBER)}, '{"a":7}'),
        ({"structured_outputs": {"json": NUMBER}}, '{"a":7}'),
        ({"response_format": {"type": "json_object", "value": NUMBER}}, '{"a":7}'),
        ({"response_format": {"type": "regex", "value": " nine( ten){2}"}}, " nine ten ten"),
        ({"guided_regex": " nine( ten){2}"}, " nine ten ten"),
        ({"guided_choice": [DATE]}, DATE),
        ({"guided_choice": ["\u20ac"]}, "\u20ac"),
        ({"guided_regex": "(\u65e5|/)\\u{672c}/{2}"}, "/\u672c//"),
        ({"guided_json": {"const": "\U0001f600\n"}}, '"\U0001f600\\n"'),
        ({"guided_grammar": 'start: "\u20ac" / two/'}, "\u20ac two"),
        ({"guided_grammar": 'start: " six" tail\ntail: " two"'}, " six two"),
        ({"response_format": {"type": "text"}, "max_tokens": 2}, " two three"),
    ],
)
def test_a_text_follows_a_grammar(client: Any, options: dict[str, Any], expected: str, streams: bool) -> None:
    found = client.completions.create(model="counter", prompt=" one", extra_body=options, stream=streams)
    texts = [choice.text for chunk in found for choice in chunk.choices] if streams else [found.choices[0].text]
    assert "".join(texts) == expected


@pytest.mark.parametrize("streams", [False, True])
def test_partial_character_tokens_have_their_bytes(client: Any, streams: bool) -> None:
    text = "éü one"
    grammar = {"guided_choice": [text]}
    prompted = {"model": "counter", "prompt": " one", "logprobs": 1, "extra_body": grammar, "stream": streams}
    found = client.completions.create(**prompted)
    places = [choice.logprobs for chunk in (found if streams else [found]) for choice in chunk.choices]
    tokens = [token for each in places if each for token in each.tokens]
    assert tokens[:4] == [f"bytes:\\x{byte:02x}" for byte in "éü".encode()]
    assert [offset for each in places if each for offset in each.text_offset][:5] == [0, 0, 1, 1, 2]
    asked = {"model": "counter", "messages": [{"role": "user", "content": "one"}], "logprobs": True}
    chat = client.chat.completions.create(**asked, extra_body=grammar, stream=streams)
    chosen = [choice.logprobs for chunk in (chat if streams else [chat]) for choice in chunk.choices]
    content = [place for each in chosen if each for place in each.content or ()]
    assert b"".join(bytes(place.bytes) for place in content).decode().startswith(text)


def test_unusable_grammar_fails_only_its_own_request(client: Any) -> None:
    asked = {"model": "counter", "prompt": " one"}
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.completions.create, **asked)
        with pytest.raises(openai.APIStatusError) as caught:
            client.completions.create(
                **asked, extra_body={"guided_grammar": '%llguidance {"no_forcing": false}\nstart: "\u20ac"'}
            )
        assert other.result().choices[0].text == "".join(f" {word}" for word in WORDS[1:])
    assert caught.value.status_code == 501
    assert "cannot go on with this grammar" in caught.value.body["message"]
    assert client.completions.create(**asked, max_tokens=1).choices[0].text == " two"


LOOK = {"type": "object", "properties": {"at": {"enum": [7]}}, "required": ["at"], "additionalProperties": False}
LOOKS = [{"type": "function", "function": {"name": "look", "parameters": LOOK}}]
CALL = r'Well\.\n<tool_call>\{"name": "look", "arguments": \{"at": 7\}\}</tool_call>'


@pytest.mark.parametrize(
    ("arguments", "content", "reason"),
    [
        ({"tool_choice": "required", "parallel_tool_calls": False}, None, "tool_calls"),
        ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, None, "stop"),
        (
            {
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": LOOKS}},
                "parallel_tool_calls": False,
            },
            None,
            "tool_calls",
        ),
        ({"extra_body": {"guided_regex": CALL}}, "Well.", "tool_calls"),
        (
            {"tool_choice": "required", "parallel_tool_calls": False, "response_format": {"type": "json_object"}},
            None,
            "tool_calls",
        ),
    ],
)
def test_a_model_calls_tools(client: Any, arguments: dict[str, Any], content: str | None, reason: str) -> None:
    chat = {"model": "endless", "messages": [{"role": "user", "content": "one"}], "tools": LOOKS, **arguments}
    whole = client.chat.completions.create(**chat).choices[0]
    with client.chat.completions.stream(**chat) as stream:
        joined = stream.get_final_completion().choices[0]
    for choice in (whole, joined):
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("look", {"at": 7})
        assert (choice.message.content, choice.message.role, choice.finish_reason) == (content, "assistant", reason)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"response_format": {"type": "json_object"}}, "'response_format' keeps the model from calling 'tools'"),
        ({"tool_choice": "required", "extra_body": {"guided_json": {}}}, "'guided_json' guides the text"),
    ],
)
def test_options_that_prevent_tool_calls_are_refused(client: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="endless", messages=[{"role": "user", "content": "one"}], tools=LOOKS, **options
        )
    assert message in caught.value.body["message"]


def test_response_format_json_object_generates_an_object(client: Any) -> None:
    found = client.completions.create(
        model="counter", prompt=" one", max_tokens=5, extra_body={"response_format": {"type": "json_object"}}
    )
    assert found.choices[0].text.startswith("{")


def test_disconnect_ends_generation(client: Any) -> None:
    stream = client.completions.create(model="endless", prompt=" one", stream=True)
    assert next(stream).choices[0].text == " two"
    stream.close()
    answer = client.completions.create(model="endless", prompt=" two", max_tokens=2, timeout=20)
    assert answer.choices[0].text == " three four"


def test_triton_clients_generate(server: ServerProcess) -> None:
    url = f"http://{server.address}/v2/models/counter"
    answer = requests.post(f"{url}/generate", json={"text_input": " one", "max_tokens": 2}).json()
    assert answer["text_output"] == " two three"
    body = {"text_input": " one", "max_tokens": 2, "stream": True}
    events = requests.post(f"{url}/generate_stream", json=body).text.split("\n\n")
    assert [" two" in events[0], " three" in events[1]] == [True, True]
    text, streams = InferInput("text_input", [1], "BYTES"), InferInput("stream", [1], "BOOL")
    text.set_data_from_numpy(np.array([b" ten"], np.object_))
    streams.set_data_from_numpy(np.array([True]))
    results: SimpleQueue[Any] = SimpleQueue()
    with InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as grpc:
        grpc.start_stream(lambda result, error: results.put(error or result))
        grpc.async_stream_infer("counter", [text, streams])
        outputs = [results.get(timeout=60)]
        while outputs[-1].as_numpy("finish_reason") is None:
            outputs.append(results.get(timeout=60))
        grpc.stop_stream()
    pieces = [output.as_numpy("text_output")[0] for output in outputs]
    assert (pieces[0], b"".join(pieces)) == (b" eleven", b" eleven twelve")


def test_vertex_predicts_for_instances_that_are_prompts(server: ServerProcess) -> None:
    own = {"inputs": " six", "parameters": {"return_full_text": True}}
    instances: list[Any] = [" one two", {"prompt": " five", "max_tokens": 1}, own, {"text_input": " eleven"}]
    asked = {"instances": instances, "parameters": {"max_new_tokens": 2}}
    url = server.vertex  # type: ignore[attr-defined]
    assert requests.post(url, json=asked).json() == {
        "predictions": [" three four", " six", " six seven eight", " twelve"]
    }
    assert requests.post(url, json={"instances": [" one"] * 129}).status_code == 400


@pytest.mark.parametrize("platform", ["sagemaker", "vertex", "azureml"])
def test_platforms_accept_requests_for_text_generation_containers(server: ServerProcess, platform: str) -> None:
    url = getattr(server, platform)
    asked = {"inputs": " one", "parameters": {"max_new_tokens": 2, "do_sample": False, "return_full_text": True}}
    assert requests.post(url, json=asked).json() == [{"generated_text": " one two three"}]
    several = {"inputs": [" one", " five"], "parameters": {"max_new_tokens": 4, "stop_sequences": [" seven"]}}
    texts = [" two three four five", " six seven"]
    assert requests.post(url, json=several).json() == [[{"generated_text": text}] for text in texts]
    greedy = {"do_sample": False, "typical_p": 0.95}  # as LangChain's client sends it
    twice = {"inputs": " one", "parameters": {"max_new_tokens": 1, "num_return_sequences": 2, **greedy}}
    assert requests.post(url, json=twice).json() == [{"generated_text": " two"}] * 2
    sampled = {"do_sample": True, "max_new_tokens": 40, "seed": 3, "temperature": 50, "top_k": 300}
    assert requests.post(url, json={"inputs": " one", "parameters": sampled}).json() != [
        {"generated_text": "".join(f" {word}" for word in WORDS[1:])}
    ]
    for name in ("decoder_input_details", "max_length", "echo", "tools", "n"):
        refused = requests.post(url, json={"inputs": " one", "parameters": {name: True}})
        assert (refused.status_code, f"'{name}' is not supported" in refused.json()["error"]) == (400, True)
    chat = {"messages": [{"role": "user", "content": "one"}], "max_tokens": 2}
    assert requests.post(url, json=chat).json()["choices"][0]["message"]["content"] == " two three"
    events = requests.post(url, json={**chat, "stream": True}).text
    assert (events.count('"content":" t'), events.endswith("data: [DONE]\n\n")) == (2, True)
    refused = requests.post(url, json={"inputs": " one" * 64})
    assert (refused.status_code, "the model takes 63" in refused.json()["error"]) == (400, True)
