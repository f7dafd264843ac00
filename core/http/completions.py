"""Models that generate text over OpenAI's routes: `/v1/completions` and `/v1/chat/completions`, with streams of chunks.

A model takes a text and answers with text: one BYTES input that is not optional and one BYTES output, or those that
Triton's vLLM and TensorRT-LLM models have (`text_input`, `text_output`). Options of a request become the optional
inputs that the model declares for them (`max_tokens`, `temperature`, `sampling_parameters`, …), and parameters of the
request.
Source: docs/text-models.md; OpenAI's API reference; the README of Triton's vLLM backend.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import orjson

from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.engine.protocol import ServedModel
from trident.core.errors import BackendFailed, InvalidRequest, ServerError
from trident.core.frontend.request import RESERVED_PARAMETERS, RESERVED_PREFIX
from trident.core.frontend.response_stream import ResponseStream
from trident.core.http.dataplane import add_load, complete, off_hub, open_stream, run
from trident.core.http.errors import EVENT_STREAM, event
from trident.core.http.front_end import INFERENCE_KEY, HttpFrontEnd, InferenceNote
from trident.core.http.reply import Environ, Reply, json_reply
from trident.core.http.text_routes import openai_error, openai_error_object, read_object
from trident.core.inference.request import InferenceRequest, InputTensor, Parameter
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import BYTES, Buffer, bytes_array

_TEXT_INPUTS = ("text_input", "prompt", "text")
_TEXT_OUTPUTS = ("text_output", "text")
_CHAT_TEMPLATE = "chat_template"
_TEMPLATE_TOKENS = ("bos_token", "eos_token")
# Members that are for this server, not for the model.
_OWN = frozenset({"model", "prompt", "messages", "stream", "stream_options", "n", "tools", "user"})
# What TensorRT-LLM's models call them.
_OTHER_NAMES = {"stop_words": "stop", "random_seed": "seed", "return_log_probs": "logprobs"}
_USAGE = {"prompt_tokens": "num_input_tokens", "completion_tokens": "num_output_tokens"}
# The names that text-generation-inference has for OpenAI's options.
_GENERATION_NAMES = {"max_new_tokens": "max_tokens", "adapter_id": "adapter"}
# Without a template of the model's own.
_PLAIN_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


class _Form(NamedTuple):
    """One of the two routes: the names of its objects, and the member of a choice that has the text."""

    whole: str
    chunk: str
    prefix: str
    is_chat: bool

    def choice(self, text: str, finish: str | None, *, is_chunk: bool) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self.is_chat:
            content = {"delta" if is_chunk else "message": {"role": "assistant", "content": text}}
        return {"index": 0, **content, "logprobs": None, "finish_reason": finish}


_COMPLETION = _Form("text_completion", "text_completion", "cmpl", is_chat=False)
_CHAT = _Form("chat.completion", "chat.completion.chunk", "chatcmpl", is_chat=True)


def completions(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """OpenAI's `POST /v1/completions`."""
    return _answer(front_end, environ, _COMPLETION)


def chat_completions(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """OpenAI's `POST /v1/chat/completions`."""
    return _answer(front_end, environ, _CHAT)


def invocation(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Buffer) -> Reply | None:
    """The answer to what containers for generation take on a platform's one route; None for another body.

    That is OpenAI's `{"messages": …}` or `{"prompt": …}`, or `{"inputs": "…", "parameters": {…}}` of text-generation-
    inference. Raises ServerError.
    """
    try:
        asked = off_hub(front_end, len(body), orjson.loads, body)
    except ValueError:
        return None
    if not isinstance(asked, dict):
        return None
    if isinstance(asked.get("inputs"), str):
        return _generated(front_end, environ, model, asked)
    form = next((form for member, form in (("messages", _CHAT), ("prompt", _COMPLETION)) if member in asked), None)
    return None if form is None else _completed(front_end, environ, form, model, asked)


def _generated(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, asked: Mapping[str, Any]) -> Reply:
    if asked.get("stream"):
        raise InvalidRequest("'inputs' is not answered as a stream", hint="send 'prompt' or 'messages' with 'stream'")
    options = asked.get("parameters") or {}
    if not isinstance(options, dict):
        raise InvalidRequest("'parameters' must be an object")
    options = {_GENERATION_NAMES.get(name, name): value for name, value in options.items()}
    is_full = options.pop("return_full_text", False) is True
    if options.pop("do_sample", None) is False:
        options["temperature"] = 0
    prompt: str = asked["inputs"]
    request = _request(model.spec, prompt, options)
    complete(front_end, environ, request)
    text, _ = _whole(front_end, environ, model, request, _text_output(model.spec))
    return json_reply([{"generated_text": prompt + text if is_full else text}])


def _answer(front_end: HttpFrontEnd, environ: Environ, form: _Form) -> Reply:
    try:
        body = read_object(front_end, environ)
        name = body.get("model")
        if not isinstance(name, str) or not name:
            raise InvalidRequest("'model' must be the name of a model")
        return _completed(front_end, environ, form, front_end.engine.model(name), body)
    except ServerError as error:
        return openai_error(front_end, environ, error)


def _completed(
    front_end: HttpFrontEnd, environ: Environ, form: _Form, model: ServedModel, body: Mapping[str, Any]
) -> Reply:
    if body.get("n", 1) != 1:
        raise InvalidRequest("'n' may only be 1", hint="send the request several times")
    name, output = model.spec.name, _text_output(model.spec)
    prompt = _prompt_of_chat(front_end, name, body) if form.is_chat else _prompt(body)
    request = _request(model.spec, prompt, body)
    complete(front_end, environ, request)
    head = {"id": f"{form.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}
    if body.get("stream") is True:
        stream = _responses(front_end, environ, model, request)
        chunks = _Chunks(front_end, environ, stream, form, head, output, body.get("stream_options"))
        chunks.begin()
        reply = Reply(200, [("Content-Type", EVENT_STREAM), ("X-Accel-Buffering", "no")], chunks)
    else:
        text, last = _whole(front_end, environ, model, request, output)
        choice = form.choice(text, _finish_reason(last), is_chunk=False)
        reply = json_reply({**head, "object": form.whole, "choices": [choice], "usage": _usage(last)})
    add_load(front_end, environ, reply.headers, name)
    return reply


def _whole(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, request: InferenceRequest, output: str
) -> tuple[str, InferenceResponse]:
    """The text of all responses, and the last one of them. Raises ServerError."""
    text, last = "", None
    stream = _responses(front_end, environ, model, request)
    try:
        for response in stream:
            if response.error is not None:
                raise response.error
            if response.outputs:
                text += _text_of(response, output)
                last = response
    finally:
        if isinstance(stream, ResponseStream):
            stream.cancel()
    if last is None:
        raise BackendFailed("the model has sent no text", model=model.spec.name)
    return text, last


class _Chunks:
    """The events of a stream: a chunk for each response, and `[DONE]`. Used by the request's thread or greenlet."""

    def __init__(
        self,
        front_end: HttpFrontEnd,
        environ: Environ,
        stream: Iterator[InferenceResponse],
        form: _Form,
        head: Mapping[str, Any],
        output: str,
        options: object,
    ) -> None:
        self._front_end = front_end
        self._environ = environ
        self._stream = stream
        self._form = form
        self._head = head
        self._output = output
        self._has_usage = isinstance(options, dict) and options.get("include_usage") is True
        self._last: InferenceResponse | None = None
        self._begun: InferenceResponse | None = None
        self._has_ended = False

    def begin(self) -> None:
        """Wait for the first response. Raises its error, so that the status can still say it."""
        first = next(self._stream, None)
        if first is not None and first.error is not None:
            self.close()
            raise first.error
        self._begun = first

    def __iter__(self) -> _Chunks:
        return self

    def __next__(self) -> bytes:
        if self._has_ended:
            raise StopIteration
        try:
            while (response := self._taken()) is not None:
                if response.error is not None:
                    raise response.error
                if response.outputs:
                    self._last = response
                    return self._event(self._form.choice(_text_of(response, self._output), None, is_chunk=True))
        except ServerError as error:
            self._has_ended = True
            error.__traceback__ = None  # it refers to this frame, which refers to the response
            return event(orjson.dumps(openai_error_object(self._front_end, self._environ, error)))
        self._has_ended = True
        choice = self._form.choice("", "stop" if self._last is None else _finish_reason(self._last), is_chunk=True)
        end = self._event(choice)
        if self._has_usage:
            usage = {"choices": [], "usage": _usage(self._last)}
            end += event(orjson.dumps({**self._head, "object": self._form.chunk, **usage}))
        return end + event(b"[DONE]")

    def close(self) -> None:
        if isinstance(self._stream, ResponseStream):
            self._stream.cancel()

    def _taken(self) -> InferenceResponse | None:
        begun, self._begun = self._begun, None
        return begun if begun is not None else next(self._stream, None)

    def _event(self, choice: dict[str, Any]) -> bytes:
        return event(orjson.dumps({**self._head, "object": self._form.chunk, "choices": [choice]}))


def _responses(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, request: InferenceRequest
) -> Iterator[InferenceResponse]:
    if not model.spec.decoupled:
        return iter([run(front_end, environ, model, request)])
    stream = open_stream(front_end, environ, model, request)
    environ[INFERENCE_KEY] = InferenceNote(model.spec.name, model.spec.version)
    return stream


# --- the model's tensors


def _text_output(spec: ModelSpec) -> str:
    texts = [each.name for each in spec.outputs.values() if each.datatype is BYTES]
    named = [name for name in _TEXT_OUTPUTS if name in texts]
    if not named and len(texts) != 1:
        raise InvalidRequest(f"model '{spec.name}' does not answer with text: it needs a BYTES output text_output")
    return (named or texts)[0]


def _text_input(spec: ModelSpec) -> InputSpec:
    texts = [each for each in spec.inputs.values() if each.datatype is BYTES]
    named = [spec.inputs[name] for name in _TEXT_INPUTS if name in spec.inputs]
    needed = [each for each in texts if not each.optional]
    if not named and len(needed) != 1:
        raise InvalidRequest(f"model '{spec.name}' does not take a text: it needs a BYTES input text_input")
    return (named or needed)[0]


def _request(spec: ModelSpec, prompt: str, body: Mapping[str, Any]) -> InferenceRequest:
    options = {name: value for name, value in body.items() if name not in _OWN and value is not None}
    streams = body.get("stream") is True
    values: dict[str, Any] = {
        **{ours: options[theirs] for ours, theirs in _OTHER_NAMES.items() if theirs in options},
        **options,
        "stream": streams,
        "exclude_input_in_output": True,
        "sampling_parameters": orjson.dumps(options).decode(),
    }
    taken = _text_input(spec)
    tensors = [_tensor(spec, taken, prompt)]
    for name, declared in spec.inputs.items():
        if name == taken.name:
            continue
        if name in values:
            tensors.append(_tensor(spec, declared, values[name]))
        elif not declared.optional:
            raise InvalidRequest(f"model '{spec.name}' needs the input '{name}', and the request has no such member")
    parameters: dict[str, Parameter] = {"stream": streams}
    for name, value in options.items():
        if name not in RESERVED_PARAMETERS and not name.startswith(RESERVED_PREFIX):
            parameters[name] = value if isinstance(value, str | int | bool | float) else orjson.dumps(value).decode()
    return InferenceRequest(spec.name, tensors, parameters=parameters)


def _tensor(spec: ModelSpec, declared: InputSpec, value: Any) -> InputTensor:
    values = value if isinstance(value, list) else [value]
    shape = (*[1 for _ in declared.dims[1:]], len(values)) if declared.dims else ()
    if spec.max_batch_size > 0:
        shape = (1, *shape)
    datatype = declared.datatype
    try:
        if datatype is BYTES:
            texts = [each if isinstance(each, str) else orjson.dumps(each).decode() for each in values]
            return InputTensor(declared.name, "BYTES", shape, bytes_array([text.encode() for text in texts], shape))
        array = np.array(values, datatype.dtype).reshape(shape)
    except (ValueError, TypeError, OverflowError):
        raise InvalidRequest(f"'{declared.name}' must be of {datatype.name}") from None
    return InputTensor(declared.name, datatype.name, shape, array)


def _text_of(response: InferenceResponse, output: str) -> str:
    arrays = [each.array for each in response.outputs if each.name == output]
    elements = [element for array in arrays for element in array.ravel().tolist()]
    return b"".join(elements).decode("utf-8", "replace")


def _scalar(response: InferenceResponse | None, name: str) -> Any:
    found = [] if response is None else [each.array for each in response.outputs if each.name == name]
    return found[0].ravel()[0] if found and found[0].size else None


def _finish_reason(response: InferenceResponse) -> str:
    reason = _scalar(response, "finish_reason")
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) and reason else "stop"


def _usage(response: InferenceResponse | None) -> dict[str, int]:
    """The tokens that the model counts; 0 if it counts none."""
    counts = {name: int(_scalar(response, output) or 0) for name, output in _USAGE.items()}
    return {**counts, "total_tokens": sum(counts.values())}


# --- prompts


def _prompt(body: Mapping[str, Any]) -> str:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise InvalidRequest("'prompt' must be one text")
    return prompt


def _prompt_of_chat(front_end: HttpFrontEnd, name: str, body: Mapping[str, Any]) -> str:
    """The text of the messages, by the model's template or a plain one."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise InvalidRequest("'messages' must be a list of objects with 'role' and 'content'")
    plain = [_plain(message, at) for at, message in enumerate(messages)]
    config = front_end.bridge.run(front_end.engine.model_config(name).parse)
    said = {name: value.string_value for name, value in config.parameters.items()}
    source = said.get(_CHAT_TEMPLATE, "")
    values: dict[str, Any] = {name: said.get(name, "") for name in _TEMPLATE_TOKENS}
    values |= {"messages": plain, "tools": body.get("tools")}
    try:
        return str(front_end.bridge.run(_rendered, source or _PLAIN_TEMPLATE, values))
    except Exception as error:  # whatever a template raises
        raise InvalidRequest(f"the chat template of model '{name}' refuses the messages: {error}") from error


def _plain(message: Mapping[str, Any], at: int) -> dict[str, Any]:
    """The message with its parts of text as one text. Raises InvalidRequest for other parts, such as images."""
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise InvalidRequest(f"'content' of message {at} has a part that is not text, which no model takes here")
        content = "".join(part["text"] for part in content)
    elif not isinstance(content, str | None):
        raise InvalidRequest(f"'content' of message {at} must be a text or a list of parts")
    return {**message, "role": str(message.get("role", "user")), "content": "" if content is None else content}


def _rendered(source: str, values: Mapping[str, Any]) -> str:
    return str(_template(source).render(**values, add_generation_prompt=True))


@lru_cache(maxsize=32)
def _template(source: str) -> Any:
    # Imported by the first chat. A template may come with a model from anywhere: it cannot leave the sandbox.
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(source)


def _refuse(message: str) -> None:
    raise ValueError(message)
