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
from codecs import getincrementaldecoder
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from trident.core.config.platforms import GENAI
from trident.core.config.platforms import TEXT as TEXT_BACKEND
from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.engine.protocol import ServedModel
from trident.core.errors import BackendFailed, InvalidRequest, ServerError
from trident.core.frontend.bridge import ResponseStreams
from trident.core.frontend.request import RESERVED_PARAMETERS, RESERVED_PREFIX
from trident.core.http.chat import MEMBERS as CHAT_MEMBERS
from trident.core.http.chat import chat_prompt, chosen_template
from trident.core.http.dataplane import add_load, complete, open_streams, run, run_many
from trident.core.http.errors import (
    EVENT_STREAM,
    INFERENCE_KEY,
    UNBUFFERED,
    event,
)
from trident.core.http.front_end import HttpFrontEnd, InferenceNote
from trident.core.http.reply import Environ, Reply, json_reply
from trident.core.http.text_routes import address, flag, openai_error_object, read_object, served_models
from trident.core.http.tool_calls import CallForm, Calls, Tools, tools_of, with_allowed_tools
from trident.core.inference.request import InferenceRequest, InputTensor, Parameter
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import BYTES, bytes_array

_TEXT_INPUTS = ("text_input", "prompt", "text")
TEXT_OUTPUTS = ("text_output", "text")
MEMBERS: Mapping[str, frozenset[str]] = {
    "/v1/completions": frozenset({"model", "prompt", "stream", "stream_options", "n", "best_of", "user"}),
    "/v1/chat/completions": CHAT_MEMBERS
    | {"model", "stream", "stream_options", "n", "best_of", "user", "top_logprobs"},
}
"""The members of the bodies of each route that are for this server; all others are for the model."""
OWN = MEMBERS["/v1/completions"] | MEMBERS["/v1/chat/completions"]
_STREAM_OPTIONS = {"include_usage": (True, False), "include_obfuscation": (False,)}
# Sent by huggingface_hub's InferenceClient that was given the address of a server, and no model.
_NO_NAME = "dummy"
# A prompt that is token ids, as vLLM calls it.
_PROMPT_IDS = "prompt_token_ids"
# Choices of one request; more would keep the model from other clients.
_MOST_CHOICES = 128
# Their names in TensorRT-LLM's models.
_OTHER_NAMES = {"stop_words": "stop", "random_seed": "seed"}
# Inputs that ask Triton's vLLM and TensorRT-LLM models for more than the text.
_ALWAYS_ASKED = ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")
_ASKED_FOR_LOGPROBS = ("return_logprobs", "return_log_probs")


class CompletionForm(NamedTuple):
    """One of the two routes: the names of its objects, and the member of a choice that has the text."""

    route: str
    whole: str
    chunk: str
    prefix: str
    is_chat: bool

    def choice(
        self,
        index: int,
        text: str,
        finish: str | None,
        logprobs: Logprobs | None,
        *,
        is_chunk: bool,
        is_first: bool = False,
        calls: Sequence[dict[str, Any]] = (),
        has_calls: bool = False,
    ) -> dict[str, Any]:
        """A choice, or what a chunk adds to it. Clients join the deltas, so that only the first one has the role.

        A choice that `has_calls`, here or before, may have no content.
        """
        content: dict[str, Any] = {"text": text}
        if self.is_chat and is_chunk:
            role = {"role": "assistant"} if is_first else {}
            said = {} if has_calls and not text else {"content": text}
            content = {"delta": {**role, **said, **({"tool_calls": calls} if calls else {})}}
        elif self.is_chat:
            whole = [{name: value for name, value in call.items() if name != "index"} for call in calls]
            made_calls = {"tool_calls": whole} if calls else {}
            content = {"message": {"role": "assistant", "content": (text or None) if has_calls else text, **made_calls}}
        made = logprobs and (logprobs.of_chat() if self.is_chat else logprobs.of_completion())
        return {"index": index, **content, "logprobs": made, "finish_reason": finish}


class Candidate(NamedTuple):
    """A token that could come at one place of the text, and its bytes. The likeliest one has rank 1.

    Special tokens, such as that of the end, are not in the text.
    """

    id: int
    token: str
    content: bytes
    logprob: float
    rank: int
    is_special: bool

    def member(self) -> dict[str, Any]:
        return {"token": self.token, "logprob": self.logprob, "bytes": list(self.content)}

    @property
    def name(self) -> str:
        """The token by itself; a part of a character is named by its bytes, as OpenAI's completions do it."""
        if self.token.encode() == self.content:
            return self.token
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.content)


class _Offsets:
    """Counts the characters of tokens, of which one may have a part of a character."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._count = 0

    def next(self, token: bytes) -> int:
        """The characters that were complete before `token`."""
        before = self._count
        self._count += len(self._decoder.decode(token))
        return before


class Logprobs:
    """The tokens of a text with their likelihoods, and the `most` likeliest ones at each place."""

    def __init__(self, most: int, offsets: _Offsets) -> None:
        """`offsets` counts from the beginning of the answer."""
        self._most = most
        self._offsets = offsets
        self.places: list[list[Candidate]] = []

    def add(self, text: bytes) -> None:
        """Add the JSON of a vLLM model: an object of candidates for each place, that of the text first."""
        for place in filter(None, orjson.loads(text) or ()):
            self.places.append([_candidate(int(token), each) for token, each in place.items()])

    def of_chat(self) -> dict[str, Any]:
        return {
            "content": [
                {**place[0].member(), "top_logprobs": [each.member() for each in self.likeliest(place)]}
                for place in self._of_text()
            ]
        }

    def of_completion(self) -> dict[str, Any]:
        places = self._of_text()
        return {
            "tokens": [place[0].name for place in places],
            "token_logprobs": [place[0].logprob for place in places],
            "top_logprobs": [{each.name: each.logprob for each in self.likeliest(place)} for place in places],
            "text_offset": [self._offsets.next(place[0].content) for place in places],
        }

    def likeliest(self, place: list[Candidate]) -> list[Candidate]:
        return sorted((each for each in place if each.rank <= self._most), key=lambda each: each.rank)

    def _of_text(self) -> list[list[Candidate]]:
        return [place for place in self.places if not place[0].is_special]


def _candidate(token: int, each: Mapping[str, Any]) -> Candidate:
    text = each["decoded_token"] or ""
    content = bytes(each.get("bytes") or text.encode())
    return Candidate(token, text, content, each["logprob"], each["rank"] or 0, each.get("special") is True)


class Account:
    """The text and likelihoods of one choice so far."""

    def __init__(self, output: str, logprobs: int | None, tools: Tools | None = None) -> None:
        """`output` has the text; `logprobs` is how many candidates the client wants at each place, None for nothing.

        `tools` are those whose calls are taken out of the text.
        """
        self._tools = tools
        self._calls = tools and Calls(tools)
        self._output = output
        self._most = logprobs
        self._offsets = _Offsets()
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.finish_reason = "stop"

    @property
    def has_calls(self) -> bool:
        return self._calls is not None and self._calls.count > 0

    def said(self, text: str, is_end: bool) -> tuple[str, list[dict[str, Any]]]:
        """The content and the calls of tools that are certain with `text`, the next piece, or the last one."""
        if self._calls is None:
            return text, []
        content, calls = self._calls.add(text)
        if is_end:
            more, last = self._calls.end()
            content, calls = content + more, [*calls, *last]
            # As OpenAI has it: a call that the request names ends as a text does.
            is_named = self._tools is not None and self._tools.form is CallForm.ARGUMENTS
            if self.has_calls and self.finish_reason == "stop" and not is_named:
                self.finish_reason = "tool_calls"
        return content, calls

    def begin_logprobs(self) -> Logprobs | None:
        """Return an empty record for the logprobs of the text to come; None if the client wants none."""
        return None if self._most is None else Logprobs(self._most, self._offsets)

    def add(self, response: InferenceResponse, logprobs: Logprobs | None) -> str:
        """Note a response, and add to `logprobs`. Returns its text."""
        arrays = [each.array for each in response.outputs if each.name == self._output]
        elements = [element for array in arrays for element in array.ravel().tolist()]
        text = b"".join(elements).decode("utf-8", "replace")
        reason = _scalar(response, "finish_reason")
        if isinstance(reason, bytes) and reason not in (b"", b"None"):
            self.finish_reason = reason.decode("utf-8", "replace")
        # As vLLM models do it: all tokens of the prompt, and the tokens of this response.
        self.prompt_tokens = int(_scalar(response, "num_input_tokens") or self.prompt_tokens)
        self.completion_tokens += int(_scalar(response, "num_output_tokens") or 0)
        given = None if logprobs is None else _scalar(response, "logprobs")
        if logprobs is not None and isinstance(given, bytes):
            try:
                logprobs.add(given)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise BackendFailed(f"the output 'logprobs' is not as that of vLLM models: {error!r}") from error
        return text


def _usage(accounts: Sequence[Account], n: int) -> dict[str, int]:
    """The tokens that the model counts, 0 if it counts none: those of a prompt once for its `n` choices."""
    prompt = sum(account.prompt_tokens for account in accounts[::n])
    completion = sum(account.completion_tokens for account in accounts)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


# Each with the index of its choice.
Responses = Iterator[tuple[int, InferenceResponse]]
COMPLETION = CompletionForm("/v1/completions", "text_completion", "text_completion", "cmpl", is_chat=False)
CHAT = CompletionForm("/v1/chat/completions", "chat.completion", "chat.completion.chunk", "chatcmpl", is_chat=True)


def completions(front_end: HttpFrontEnd, environ: Environ, default: str = "") -> Reply:
    """OpenAI's `POST /v1/completions`. `default` is the model of a body that names none, "" for the only one."""
    return _answer(front_end, environ, COMPLETION, default)


def chat_completions(front_end: HttpFrontEnd, environ: Environ, default: str = "") -> Reply:
    """OpenAI's `POST /v1/chat/completions`. `default` is the model of a body that names none, "" for the only one."""
    return _answer(front_end, environ, CHAT, default)


def _answer(front_end: HttpFrontEnd, environ: Environ, form: CompletionForm, default: str) -> Reply:
    body = read_object(front_end, environ)
    return completed(front_end, environ, form, model_that_generates(front_end, body.get("model") or default), body)


def model_that_generates(front_end: HttpFrontEnd, name: object) -> ServedModel:
    """The model `name`; without a name the only one that answers a text with text, of streams first.

    Raises ServerError.
    """
    if isinstance(name, str) and name not in ("", _NO_NAME):
        return front_end.engine.model(name)
    ready = {each.spec.name: each for each in served_models(front_end)}
    if name == _NO_NAME and name in ready:
        return ready[name]
    able = [each for each in ready.values() if generates(each.spec)]
    found = [each for each in able if each.spec.decoupled] or able
    if name not in (None, "", _NO_NAME) or len(found) != 1:
        names = ", ".join(each.spec.name for each in found[:10])
        raise InvalidRequest(
            "'model' must be the name of a model", hint=f"models that generate text: {names or 'none'}"
        )
    return found[0]


def generates(spec: ModelSpec) -> bool:
    """True for a model that answers a text with text. Those of the backend text answer with vectors and JSON."""
    if spec.backend == TEXT_BACKEND or not any(each.datatype is BYTES for each in spec.outputs.values()):
        return False
    try:
        return bool(_text_input(spec)) and bool(text_output(spec))
    except InvalidRequest:
        return False


def completed(
    front_end: HttpFrontEnd, environ: Environ, form: CompletionForm, model: ServedModel, body: Mapping[str, Any]
) -> Reply:
    name = model.spec.name
    _refuse_unknown(form, body)
    tools: Tools | None = None
    prompts: Sequence[str | list[int]]
    if form.is_chat:
        body = with_allowed_tools(body)
        config = front_end.bridge.run(front_end.engine.model_config(model.spec.name).parse)
        parameters = {key: value.string_value for key, value in config.parameters.items()}
        prompt = str(front_end.bridge.run(chat_prompt, model.spec.name, parameters, body))
        template = chosen_template(model.spec.name, parameters, body)
        tools = tools_of(body, template, can_guide=model.spec.backend == GENAI)
        has_template = any(each.startswith("chat_template") for each in parameters)
        prompts = [prompt]
        if has_template and model.spec.backend == GENAI and body.get("add_special_tokens") is None:
            body = {**body, "add_special_tokens": False}  # the template writes them
        if tools is not None and model.spec.backend == GENAI:
            body = _guided_by(tools, body)
    else:
        given: Any = body.get("prompt")
        prompts = given if isinstance(given, list) and given and type(given[0]) is not int else [given]
        for each in prompts:
            if not isinstance(each, str) and not (
                isinstance(each, list) and each and all(type(id) is int for id in each)
            ):
                raise InvalidRequest("'prompt' must be a text or a list of token ids, or a list of these")
    n = choices_of_each(body, prompts)
    logprobs = _logprobs(body)
    if logprobs is not None and "logprobs" not in model.spec.outputs:
        raise InvalidRequest(f"'logprobs' is not supported by model '{name}', which has no output 'logprobs'")
    accounts = [Account(text_output(model.spec), logprobs, tools) for _ in range(n * len(prompts))]
    requests = [request_of(model.spec, prompt, with_seed(body, at)) for prompt in prompts for at in range(n)]
    for request in requests:
        address(environ, request)
        complete(front_end, environ, request)
    head = {"id": f"{form.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}
    if flag(body, "stream", False):
        responses = responses_to(front_end, environ, model, requests)
        has_usage = (body.get("stream_options") or {}).get("include_usage") is True
        chunks = _Chunks(front_end, environ, responses, form, head, accounts, n if has_usage else 0)
        reply = chunks.reply()
    else:
        found = whole_answers(front_end, environ, model, requests, accounts)
        choices = []
        for index, (account, (text, places)) in enumerate(zip(accounts, found, strict=True)):
            said, calls = account.said(text, is_end=True)
            choices.append(
                form.choice(
                    index, said, account.finish_reason, places, is_chunk=False, calls=calls, has_calls=bool(calls)
                )
            )
        reply = json_reply({**head, "object": form.whole, "choices": choices, "usage": _usage(accounts, n)})
    add_load(front_end, environ, reply.headers, name)
    return reply


def _guided_by(tools: Tools, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a chat with `tools`. Raises InvalidRequest if others of them keep calls from the text."""
    form = body.get("response_format")
    if tools.guide is None:
        is_free = not isinstance(form, dict) or form.get("type") not in ("json_object", "json_schema")
        if is_free or tools.form is CallForm.LLAMA:  # whose calls are JSON
            return body
        raise InvalidRequest("'response_format' keeps the model from calling 'tools'", hint="or send tool_choice none")
    for name in body:
        if name.startswith(("guided_", "structured_")) and body[name] is not None:
            raise InvalidRequest(f"'{name}' guides the text, and 'tool_choice' wants calls in its place: send one")
    # `response_format` describes the text, and the answer has no text.
    return {**body, "response_format": None, "guided_json": tools.guide}


def _refuse_unknown(form: CompletionForm, body: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for members of the other route, and options of streams that are not known."""
    for name in OWN - MEMBERS[form.route]:
        if body.get(name) not in (None, [], {}):
            raise InvalidRequest(
                f"'{name}' is not supported by {form.route}", hint="the other of the two routes takes it"
            )
    options = body.get("stream_options")
    if not isinstance(options, dict | None):
        raise InvalidRequest("'stream_options' must be an object")
    for name, value in (options or {}).items():
        if value is not None and not any(value is known for known in _STREAM_OPTIONS.get(name, ())):
            raise InvalidRequest(f"'{name}' of 'stream_options' is not supported: leave it out")


def choices_of_each(body: Mapping[str, Any], prompts: Sequence[object]) -> int:
    """How many answers to each of `prompts` the client wants. Raises InvalidRequest."""
    n = 1 if (given := body.get("n")) is None else given
    if type(n) is not int or n < 1:
        raise InvalidRequest("'n' must be a whole number of at least 1")
    if n * len(prompts) > _MOST_CHOICES:
        raise InvalidRequest(
            f"{len(prompts)} prompts with 'n' {n} make {n * len(prompts)} choices, at most {_MOST_CHOICES} are allowed"
        )
    if body.get("best_of") not in (None, n):
        raise InvalidRequest("'best_of' must be as large as 'n': no choice is left out", hint="ask for more with 'n'")
    return n


def with_seed(body: Mapping[str, Any], at: int) -> Mapping[str, Any]:
    """The options of choice `at` of a prompt. With a seed each has its own, as in vLLM."""
    seed = body.get("seed")
    return {**body, "seed": seed + at} if at and type(seed) is int else body


def whole_answers(
    front_end: HttpFrontEnd,
    environ: Environ,
    model: ServedModel,
    requests: Sequence[InferenceRequest],
    accounts: Sequence[Account],
) -> list[tuple[str, Logprobs | None]]:
    """The text of all responses for each choice. Raises ServerError."""
    texts: list[list[str]] = [[] for _ in accounts]
    logprobs = [account.begin_logprobs() for account in accounts]
    responses = responses_to(front_end, environ, model, requests)
    try:
        for index, response in responses:
            if response.error is not None:
                raise response.error
            if response.outputs:
                texts[index].append(accounts[index].add(response, logprobs[index]))
    finally:
        if isinstance(responses, ResponseStreams):
            responses.cancel()
    return list(zip(map("".join, texts), logprobs, strict=True))


class EventStream:
    """The events of a stream: those of each response, and those of the end or of an error.

    Used by the request's thread or greenlet.
    """

    def __init__(self, front_end: HttpFrontEnd, environ: Environ, responses: Responses) -> None:
        self._front_end = front_end
        self._environ = environ
        self._responses = responses
        self._begun: tuple[int, InferenceResponse] | None = None
        self._has_ended = False

    def reply(self) -> Reply:
        """The reply, once there is a first response. Raises its error, so that the status can still say it."""
        self._begun = next(self._responses, None)
        if self._begun is not None and (error := self._begun[1].error) is not None:
            self.close()
            raise error
        return Reply(200, [("Content-Type", EVENT_STREAM), UNBUFFERED], self)

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> bytes:
        if self._has_ended:
            raise StopIteration
        try:
            while (taken := self._taken()) is not None:
                index, response = taken
                if response.error is not None:
                    raise response.error
                if events := self.events_of(index, response):
                    return events
        except ServerError as error:
            self._has_ended = True
            self.close()
            error.__traceback__ = None  # it refers to this frame, which refers to the response
            return self.failure(error)
        self._has_ended = True
        return self.end()

    def close(self) -> None:
        if isinstance(self._responses, ResponseStreams):
            self._responses.cancel()

    def events_of(self, index: int, response: InferenceResponse) -> bytes:
        """The events of a response for the choice `index`. Raises ServerError."""
        raise NotImplementedError

    def end(self) -> bytes:
        """The events after the last response."""
        raise NotImplementedError

    def failure(self, error: ServerError) -> bytes:
        """The last events of a stream that fails with `error`."""
        raise NotImplementedError

    def _taken(self) -> tuple[int, InferenceResponse] | None:
        begun, self._begun = self._begun, None
        return begun if begun is not None else next(self._responses, None)


class _Chunks(EventStream):
    """A chunk for each response, one for the end of each choice, and `[DONE]`."""

    def __init__(
        self,
        front_end: HttpFrontEnd,
        environ: Environ,
        responses: Responses,
        form: CompletionForm,
        head: Mapping[str, Any],
        accounts: Sequence[Account],
        usage_of: int,
    ) -> None:
        """`usage_of`: so many choices have the same prompt, 0 if the client wants no usage."""
        super().__init__(front_end, environ, responses)
        self._form = form
        self._head = head
        self._accounts = accounts
        self._usage_of = usage_of
        self._first_sent: set[int] = set()

    def failure(self, error: ServerError) -> bytes:
        return event(orjson.dumps(openai_error_object(self._front_end, self._environ, error)))

    def end(self) -> bytes:
        usage = self._event([], usage=_usage(self._accounts, self._usage_of)) if self._usage_of else b""
        return usage + event(b"[DONE]")

    def events_of(self, index: int, response: InferenceResponse) -> bytes:
        account, events = self._accounts[index], b""
        logprobs = account.begin_logprobs() if response.outputs else None
        text = account.add(response, logprobs) if response.outputs else ""
        said, calls = account.said(text, response.final)
        if said or calls or (response.outputs and (logprobs is not None or said == text)):
            events = self._choice(index, said, None, logprobs, calls)
        if response.final:
            events += self._choice(index, "", account.finish_reason, None)
        return events

    def _choice(
        self,
        index: int,
        text: str,
        finish: str | None,
        logprobs: Logprobs | None,
        calls: Sequence[dict[str, Any]] = (),
    ) -> bytes:
        is_first = index not in self._first_sent
        self._first_sent.add(index)
        return self._event(
            [
                self._form.choice(
                    index,
                    text,
                    finish,
                    logprobs,
                    is_chunk=True,
                    is_first=is_first,
                    calls=calls,
                    has_calls=self._accounts[index].has_calls,
                )
            ]
        )

    def _event(self, choices: list[dict[str, Any]], **members: Any) -> bytes:
        return event(orjson.dumps({**self._head, "object": self._form.chunk, "choices": choices, **members}))


def responses_to(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, requests: Sequence[InferenceRequest]
) -> Responses:
    if model.spec.decoupled:
        environ[INFERENCE_KEY] = InferenceNote(model.spec.name, model.spec.version)
        return open_streams(front_end, environ, model, requests)
    if len(requests) == 1:
        return iter([(0, run(front_end, environ, model, requests[0]))])
    return enumerate(front_end.bridge.run_long(run_many, front_end, environ, requests))


# --- the model's tensors


def text_output(spec: ModelSpec) -> str:
    texts = [each.name for each in spec.outputs.values() if each.datatype is BYTES]
    named = [name for name in TEXT_OUTPUTS if name in texts]
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


def request_of(spec: ModelSpec, prompt: str | list[int], body: Mapping[str, Any]) -> InferenceRequest:
    options = {name: value for name, value in body.items() if name not in OWN and value is not None}
    newer = options.pop("max_completion_tokens", None)
    if newer is not None and options.setdefault("max_tokens", newer) != newer:
        raise InvalidRequest("'max_tokens' and 'max_completion_tokens' differ: send one")
    if (logprobs := _logprobs(body)) is None:
        options.pop("logprobs", None)
    else:
        options["logprobs"] = logprobs
    try:
        sampling = orjson.dumps(options).decode()
    except TypeError as error:  # it writes less depth than it reads
        raise InvalidRequest(f"the options cannot be passed on: {error}") from error
    streams = flag(body, "stream", False)
    values: dict[str, Any] = {
        **{ours: options[theirs] for ours, theirs in _OTHER_NAMES.items() if theirs in options},
        **options,
        "stream": streams,
        "exclude_input_in_output": True,
        "sampling_parameters": sampling,
        **dict.fromkeys(_ALWAYS_ASKED, True),
        **dict.fromkeys(_ASKED_FOR_LOGPROBS, logprobs is not None),
    }
    taken = _text_input(spec)
    if isinstance(prompt, str):
        tensors = [_tensor(spec, taken, prompt)]
    elif _PROMPT_IDS in spec.inputs:
        tensors = [_tensor(spec, taken, "")]
        values[_PROMPT_IDS] = prompt
    else:
        raise InvalidRequest(
            f"model '{spec.name}' takes texts, not token ids", hint=f"it has no input '{_PROMPT_IDS}': send texts"
        )
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


def _logprobs(body: Mapping[str, Any]) -> int | None:
    """How many candidates the client wants at each place of the text, None for no likelihoods: a number, or for chats
    `true` and another number. Raises InvalidRequest."""
    wanted = body.get("logprobs")
    if body.get("top_logprobs") and wanted is not True:
        raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true")
    if isinstance(wanted, bool):
        wanted = (body.get("top_logprobs") or 0) if wanted else None
    if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0):
        raise InvalidRequest("'logprobs' must be a whole number, or true and 'top_logprobs' a whole number")
    return wanted


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


def _scalar(response: InferenceResponse, name: str) -> Any:
    found = [each.array for each in response.outputs if each.name == name]
    return found[0].ravel()[0] if found and found[0].size else None
