"""Models in Python that generate text, asked by OpenAI's client: whole answers, streams, and errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import requests

from tests.contract.servers.ports import free_ports
from tests.contract.servers.server import ServerProcess

# Answers with the words of its prompt in upper case, at most `max_tokens` of them, and fails at the word `fail`.
MODEL = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().ravel()[0].decode()
            sampling = pb_utils.get_input_tensor_by_name(request, "sampling_parameters")
            options = json.loads(sampling.as_numpy().ravel()[0])
            words = prompt.split()
            for at, word in enumerate(words[: options.get("max_tokens", 100)]):
                if word == "fail":
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("the model has failed")))
                    break
                word = f"seed{options.get('seed')}" if word == "seed" else word
                if word == "cut":
                    word = str(pb_utils.get_input_tensor_by_name(request, "truncate").as_numpy()[0])
                is_last = at + 1 == min(len(words), options.get("max_tokens", 100))
                reason = b"None" if not is_last else b"length" if at + 1 < len(words) else b"stop"
                tensors = [
                    pb_utils.Tensor("text_output", np.array([(word.upper() + " ").encode()], np.object_)),
                    pb_utils.Tensor("finish_reason", np.array([reason], np.object_)),
                    pb_utils.Tensor("num_input_tokens", np.array([len(words)], np.uint32)),
                    pb_utils.Tensor("num_output_tokens", np.array([1], np.uint32)),
                ]
                wanted = pb_utils.get_input_tensor_by_name(request, "return_logprobs")
                if wanted.as_numpy()[0]:
                    names = [word.upper(), "other", "third"][: 1 + options["logprobs"]]
                    place = {n: {"logprob": -n, "rank": n, "decoded_token": name} for n, name in enumerate(names, 1)}
                    tensors.append(pb_utils.Tensor("logprobs", np.array([json.dumps([place]).encode()], np.object_)))
                sender.send(pb_utils.InferenceResponse(tensors))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<{{ m.role }}> {{ m.content }} {% endfor %}{% if tools %}<{{ tools[0].function.name }}>{% endif %}"
)
CONFIG = f"""
backend: "python"
model_transaction_policy {{ decoupled: true }}
input {{ name: "text_input" data_type: TYPE_STRING dims: [1] }}
input {{ name: "sampling_parameters" data_type: TYPE_STRING dims: [1] optional: true }}
input {{ name: "return_logprobs" data_type: TYPE_BOOL dims: [1] optional: true }}
input {{ name: "stream" data_type: TYPE_BOOL dims: [1] optional: true }}
input {{ name: "truncate" data_type: TYPE_INT32 dims: [1] optional: true }}
output {{ name: "text_output" data_type: TYPE_STRING dims: [-1] }}
output {{ name: "finish_reason" data_type: TYPE_STRING dims: [-1] }}
output {{ name: "logprobs" data_type: TYPE_STRING dims: [-1] }}
output {{ name: "num_input_tokens" data_type: TYPE_UINT32 dims: [1] }}
output {{ name: "num_output_tokens" data_type: TYPE_UINT32 dims: [1] }}
parameters {{
  key: "chat_template"
  value {{ string_value: "{TEMPLATE}" }}
}}
"""
ONCE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(request, "prompt").as_numpy() for request in requests]
        upper = [np.char.upper(text.astype(str)).astype(np.object_) for text in texts]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("text", text)]) for text in upper]
"""
ONCE_CONFIG = """
backend: "python"
input { name: "prompt" data_type: TYPE_STRING dims: [1] }
output { name: "text" data_type: TYPE_STRING dims: [1] }
"""
DEEP: list[Any] = []
for _ in range(500):
    DEEP = [DEEP]
ADDER = """
backend: "python"
input { name: "a" data_type: TYPE_FP32 dims: [1] }
output { name: "b" data_type: TYPE_FP32 dims: [1] }
"""


@pytest.fixture(scope="module")
def client(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("completions")
    models = (("writer", CONFIG, MODEL), ("once", ONCE_CONFIG, ONCE), ("adder", ADDER, MODEL))
    for name, config, program in models:
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(config)
        (folder / "models" / name / "1" / "model.py").write_text(program)
    sagemaker, vertex, azureml = free_ports(3)
    options = ("--platform=plain", "--allow-sagemaker=true", f"--sagemaker-port={sagemaker}", "--allow-azureml=true")
    options += (f"--azureml-port={azureml}", "--azureml-default-model=once", "--allow-vertex-ai=true")
    options += (f"--vertex-ai-port={vertex}", "--vertex-ai-default-model=once", "--shutdown-grace-secs=0")
    environment = {**os.environ, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "once"}
    environment |= {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
    doors = {"sagemaker": f"{sagemaker}/invocations", "vertex": f"{vertex}/predict", "azureml": f"{azureml}/score"}
    with (
        ServerProcess(folder / "models", folder / "log", *options, environment=environment) as server,
        openai.OpenAI(base_url=f"http://{server.address}/v1", api_key="none", max_retries=0) as made,
    ):
        made.doors = {name: f"http://127.0.0.1:{rest}" for name, rest in doors.items()}  # type: ignore[attr-defined]
        yield made


@pytest.mark.parametrize("platform", ["sagemaker", "vertex", "azureml"])
def test_platforms_accept_chats_for_a_model_with_one_response(client: Any, platform: str) -> None:
    def ask(body: Any) -> Any:
        return requests.post(client.doors[platform], json=body).json()

    chat = {"model": "", "messages": [{"role": "user", "content": "one"}]}
    assert ask(chat)["choices"][0]["message"]["content"] == "USER: ONE\nASSISTANT:"
    assert ask({"instances": ["messages", "two"]}) == {"predictions": [["MESSAGES"], ["TWO"]]}


@pytest.mark.parametrize("name", ["", "dummy"])
def test_only_generative_model_is_the_default(client: Any, name: str) -> None:
    assert client.completions.create(model=name, prompt="one").model == "writer"


def test_each_prompt_gets_the_requested_number_of_choices(client: Any) -> None:
    asked = {"model": "writer", "prompt": ["one seed", "two three seed"], "n": 2, "best_of": 2, "seed": 7}
    expected = ["ONE SEED7 ", "ONE SEED8 ", "TWO THREE SEED7 ", "TWO THREE SEED8 "]
    answer = client.completions.create(**asked)
    assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == [
        (at, text, "stop") for at, text in enumerate(expected)
    ]
    # The prompt of several choices counts once.
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 10)
    chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    pieces = [choice for chunk in chunks for choice in chunk.choices]
    assert ["".join(each.text for each in pieces if each.index == at) for at in range(4)] == expected
    assert sorted(each.index for each in pieces if each.finish_reason == "stop") == [0, 1, 2, 3]
    assert chunks[-1].usage.total_tokens == 15


def test_a_model_with_one_response_answers_several_prompts(client: Any) -> None:
    answer = client.completions.create(model="once", prompt=["one", "two"])
    assert [choice.text for choice in answer.choices] == ["ONE", "TWO"]
    chunks = list(client.completions.create(model="once", prompt=["one", "two"], stream=True))
    assert [(each.index, each.text) for chunk in chunks for each in chunk.choices if each.text] == [
        (0, "ONE"),
        (1, "TWO"),
    ]


def test_logprobs_of_the_model_are_in_both_apis(client: Any) -> None:
    answer = client.completions.create(model="writer", prompt="ab c", logprobs=1)
    found = answer.choices[0].logprobs
    assert (found.tokens, found.token_logprobs, found.text_offset) == (["AB", "C"], [-1, -1], [0, 2])
    assert found.top_logprobs == [{"AB": -1}, {"C": -1}]
    hi = [{"role": "user", "content": "hi"}]
    for streams in (False, True):
        chat = client.chat.completions.create(
            model="writer", messages=hi, logprobs=True, top_logprobs=2, stream=streams, max_completion_tokens=1
        )
        answer = next(iter(list(chat))) if streams else chat
        (place,) = answer.choices[0].logprobs.content
        assert (place.token, place.logprob, bytes(place.bytes)) == ("<USER>", -1, b"<USER>")
        assert [(each.token, each.logprob) for each in place.top_logprobs] == [("<USER>", -1), ("other", -2)]


def test_chat_template_of_the_model_makes_the_prompt(client: Any) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    answer = client.chat.completions.create(model="writer", messages=messages, tools=tools)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "<SYSTEM> BE BRIEF <USER> HI <LOOK> ")
    assert choice.finish_reason == "stop"


def test_only_the_first_chunk_of_each_choice_has_the_role(client: Any) -> None:
    asked: dict[str, Any] = {"model": "writer", "messages": [{"role": "user", "content": "one two"}]}
    roles: dict[int, list[str | None]] = {}
    for chunk in client.chat.completions.create(**asked, n=2, stream=True):
        for choice in chunk.choices:
            roles.setdefault(choice.index, []).append(choice.delta.role)
    assert len(roles[0]) > 2
    assert list(roles.values()) == [["assistant", *[None] * (len(roles[0]) - 1)]] * 2
    with client.chat.completions.stream(**asked) as stream:
        stream.until_done()
        assert stream.get_final_completion().choices[0].message.role == "assistant"


def test_option_with_a_matching_input_reaches_the_model(client: Any) -> None:
    asked = {"model": "writer", "inputs": "cut", "parameters": {"truncate": 7}}
    root = str(client.base_url).removesuffix("/v1/")
    assert requests.post(root, json=asked).json() == [{"generated_text": "7 "}]
    asked["parameters"] = {"watermark": True}
    assert "'watermark' is not supported" in requests.post(root, json=asked).json()["error"]


@pytest.mark.parametrize("path", ["/responses", "/messages", "/chat"])
def test_unsupported_apis_list_the_supported_ones(client: Any, path: str) -> None:
    with pytest.raises(openai.NotFoundError):
        client.post(path, body={}, cast_to=object)


def test_model_error_ends_the_completion(client: Any) -> None:
    with pytest.raises(openai.InternalServerError, match="the model has failed"):
        client.completions.create(model="writer", prompt="fail")
    with pytest.raises(openai.InternalServerError, match="the model has failed"):
        client.completions.create(model="writer", prompt="fail", stream=True)
    stream = client.completions.create(model="writer", prompt="one fail", stream=True)
    assert next(stream).choices[0].text == "ONE "
    with pytest.raises(openai.APIError, match="the model has failed"):
        next(stream)
    with pytest.raises(openai.InternalServerError, match="the model has failed"):
        client.completions.create(model="writer", prompt=["one", "fail"])


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ({"model": "nothing", "prompt": "one"}, 404, "unknown model: 'nothing'"),
        ({"model": "adder", "prompt": "one"}, 400, "does not answer with text"),
        ({"model": "writer", "prompt": ["one", 5]}, 400, "'prompt' must be a text or"),
        ({"model": "writer", "prompt": []}, 400, "'prompt' must be a text or"),
        ({"model": "writer", "prompt": [1, 2]}, 400, "'writer' takes texts, not token ids"),
        ({"model": "writer", "prompt": "one", "n": 0}, 400, "'n' must be a whole number"),
        ({"model": "writer", "prompt": ["one"] * 65, "n": 2}, 400, "make 130 choices, at most 128 are allowed"),
        ({"model": "writer", "prompt": "one", "extra_body": {"x": DEEP}}, 400, "the options cannot be passed on"),
        ({"model": "writer", "prompt": "one", "best_of": 2}, 400, "'best_of' must be as large as 'n'"),
    ],
)
def test_invalid_completion_request_is_refused(
    client: Any, arguments: dict[str, Any], status: int, message: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(**arguments)
    assert caught.value.status_code == status
    assert message in caught.value.body["message"]


def test_messages_that_the_template_refuses_are_refused(client: Any) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    for messages in (
        [{"role": "tool", "content": "x", "tool_call_id": "1"}],
        [],
        [{"role": "user", "content": [image]}],
        [{"role": "user", "content": 5}],
    ):
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="writer", messages=messages)
