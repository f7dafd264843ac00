"""Models that generate text, asked in the form of text-generation-inference and of transformers' pipeline.

    /                             huggingface_hub, at the address of a server
    /generate, /generate_stream   text-generation-inference
    /invocations, /predict        the platforms' routes, which take OpenAI's bodies, too

What is known of each token is in the model's output `logprobs`, as Triton's vLLM models have it.
Source: docs/text-models.md; the router of text-generation-inference; transformers' pipelines.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import orjson

from trident.core.config.platforms import GENAI
from trident.core.config.platforms import TEXT as TEXT_BACKEND
from trident.core.engine.protocol import ServedModel
from trident.core.errors import InvalidRequest, ServerError
from trident.core.http.completions import (
    CHAT,
    COMPLETION,
    OWN,
    TEXT_OUTPUTS,
    Account,
    Candidate,
    EventStream,
    Logprobs,
    Responses,
    choices_of_each,
    completed,
    generates,
    model_that_generates,
    request_of,
    responses_to,
    text_output,
    whole_answers,
    with_seed,
)
from trident.core.http.dataplane import add_load, complete, off_hub
from trident.core.http.errors import DOCUMENTED, NO_CONSOLE, RouteNotFound, error_document, event, log_error
from trident.core.http.front_end import HttpFrontEnd
from trident.core.http.reply import TEXT, Environ, Reply, header_of, json_reply, text_reply
from trident.core.http.text_routes import (
    VERSION_KEY,
    ReadInstances,
    address,
    flag,
    hugging_face,
    pipeline_at_the_root,
    read_object,
    served_models,
)
from trident.core.inference.request import LATEST, InferenceRequest
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Buffer

NAMES = {"max_new_tokens": "max_tokens", "adapter_id": "adapter", "stop_sequences": "stop"}
"""The names that text-generation-inference has for OpenAI's options."""
MEMBERS = frozenset({"num_return_sequences", "return_full_text", "do_sample", "details", "top_n_tokens", "grammar"})
"""Options of transformers' pipeline and of text-generation-inference that are read here."""
ONLY_AS_INPUT = ("max_length", "truncate", "decoder_input_details", "watermark", "typical_p")
"""Further options of these, which only a model with such an input can do."""
_LONGEST_CHAT = 16 << 20
# The names of a prompt: text-generation-inference's, OpenAI's, and that of Triton's vLLM models.
_PROMPTS = ("inputs", "prompt", "text_input")


class _Prompt(NamedTuple):
    """One prompt and its options. `beginning` goes before each text; `stops` end it.

    `candidates` are the likeliest tokens that the client wants at each place, None for no tokens at all.
    """

    requests: Sequence[InferenceRequest]
    beginning: str
    stops: tuple[str, ...]
    candidates: int | None
    has_details: bool
    seed: int | None


class _Text:
    """The text of one sequence so far, and its tokens as text-generation-inference describes them."""

    def __init__(self, asked: _Prompt, at: int, output: str) -> None:
        """`at` is the number of the sequence for its prompt, and `output` has the text."""
        self._asked = asked
        self._seed = None if asked.seed is None else asked.seed + at
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self.account = Account(output, asked.candidates)
        self.text = asked.beginning
        self._written = ""

    def tokens(self, found: Logprobs | None) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """The tokens of `found`, each with the likeliest ones at its place."""
        if found is None:
            return []
        return [
            (
                self._token(place[0], self._next(place[0])),
                [self._token(each, each.token) for each in found.likeliest(place)],
            )
            for place in found.places
        ]

    def details(self) -> dict[str, Any]:
        """How the text has ended."""
        reason = self.account.finish_reason
        if reason == "stop":
            reason = "stop_sequence" if any(stop in self._written for stop in self._asked.stops) else "eos_token"
        return {"finish_reason": reason, "generated_tokens": self.account.completion_tokens, "seed": self._seed}

    def _next(self, token: Candidate) -> str:
        """The characters that are complete with `token`."""
        text = self._decoder.decode(token.content)
        self._written += text
        return text

    @staticmethod
    def _token(token: Candidate, text: str) -> dict[str, Any]:
        return {"id": token.id, "text": text, "logprob": token.logprob, "special": token.is_special}


def generate(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """`POST /generate`: the text after `inputs`, by the only model that generates, or the one named by `model`."""
    body = read_object(front_end, environ)
    model = model_that_generates(front_end, body.get("model"))
    if flag(body, "stream", False):
        return _stream(front_end, environ, model, body)
    ((answer, *more),) = _generated(front_end, environ, model, [body], None)
    if more:
        raise InvalidRequest("'num_return_sequences' is not supported by /generate", hint="POST / takes it")
    return json_reply(answer)


def generate_stream(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """`POST /generate_stream`: an event for each token."""
    body = read_object(front_end, environ)
    if not flag(body, "stream", True):
        raise InvalidRequest("'stream' is false, and /generate_stream answers with a stream", hint="POST /generate")
    return _stream(front_end, environ, model_that_generates(front_end, body.get("model")), body)


def text_answer(
    front_end: HttpFrontEnd,
    environ: Environ,
    model: ServedModel,
    body: Buffer,
    version: int = LATEST,
    read_instances: ReadInstances | None = None,
) -> Reply | None:
    """The answer to what containers for texts take on a platform's one route; None for another body, such as tensors.

    `version` is the one that the client asked for. Raises ServerError.
    """
    spec = model.spec
    if not len(body):
        return None
    environ[VERSION_KEY] = version
    if spec.decoupled:
        return _invocation(front_end, environ, model, _object(front_end, body), read_instances)
    if spec.backend == TEXT_BACKEND:
        return hugging_face(front_end, environ, model, body, read_instances)
    # A model that answers once takes chats, too; its other bodies are formats of tensors.
    if not generates(spec) or len(body) >= _LONGEST_CHAT or b'"messages"' not in bytes(body):
        return None
    asked = _object(front_end, body)
    return completed(front_end, environ, CHAT, model, asked) if "messages" in asked else None


def _object(front_end: HttpFrontEnd, body: Buffer) -> dict[str, Any]:
    """The JSON object in the body; an empty one if there is none."""
    try:
        asked = off_hub(front_end, len(body), orjson.loads, body)
    except ValueError:
        return {}
    return asked if isinstance(asked, dict) else {}


def _invocation(
    front_end: HttpFrontEnd,
    environ: Environ,
    model: ServedModel,
    asked: dict[str, Any],
    read_instances: ReadInstances | None,
) -> Reply | None:
    """The answer to what containers for generation take on a platform's one route; None for another body.

    That is OpenAI's `{"messages": …}` or `{"prompt": …}`, `{"inputs": "…", "parameters": {…}}` of text-generation-
    inference, or a list of texts and of these as `instances`. Raises ServerError.
    """
    if "text_inputs" in asked:
        raise InvalidRequest("'text_inputs' is not supported by models that generate", hint="send 'inputs'")
    given = asked.get("inputs")
    texts = given if isinstance(given, list) else [given]
    if texts and all(isinstance(text, str) for text in texts):
        if flag(asked, "stream", False):
            return _stream(front_end, environ, model, asked)
        answers = _generated(front_end, environ, model, [{**asked, "inputs": text} for text in texts], None)
        return json_reply(answers if isinstance(given, list) else answers[0])
    instances = asked.get("instances") if any(name in model.spec.outputs for name in TEXT_OUTPUTS) else None
    if isinstance(instances, list) and instances and all(_prompt_of(each) is not None for each in instances):
        asked = read_instances(asked) if read_instances is not None else asked
        answers = _generated(front_end, environ, model, asked["instances"], asked.get("parameters"))
        texts_of = [[each if "details" in each else each["generated_text"] for each in found] for found in answers]
        return json_reply({"predictions": [each[0] if len(each) == 1 else each for each in texts_of]})
    form = next((form for member, form in (("messages", CHAT), ("prompt", COMPLETION)) if member in asked), None)
    return None if form is None else completed(front_end, environ, form, model, asked)


def _prompt_of(asked: object) -> str | None:
    given = [asked[name] for name in _PROMPTS if name in asked] if isinstance(asked, dict) else [asked]
    return given[0] if len(given) == 1 and isinstance(given[0], str) else None


def _generated(
    front_end: HttpFrontEnd, environ: Environ, model: ServedModel, given: Sequence[Any], shared: object
) -> list[list[dict[str, Any]]]:
    """The answers to each prompt of `given`, whose options are its own, or those that all `shared`.

    Raises ServerError.
    """
    for each in given:
        if isinstance(each, dict) and flag(each, "stream", False):
            raise InvalidRequest("'stream' is for one prompt: send 'inputs', 'prompt' or 'messages'")
    asked = [_asked(front_end, environ, model, each, shared, len(given)) for each in given]
    output = text_output(model.spec)
    made = [_Text(each, at, output) for each in asked for at in range(len(each.requests))]
    requests = [request for each in asked for request in each.requests]
    found = whole_answers(front_end, environ, model, requests, [each.account for each in made])
    answers = []
    for text, (written, logprobs) in zip(made, found, strict=True):
        answer: dict[str, Any] = {"generated_text": text.text + written}
        tokens = text.tokens(logprobs)
        if logprobs is not None:
            answer["details"] = {**text.details(), "prefill": [], "tokens": [token for token, _ in tokens]}
            if any(likeliest for _, likeliest in tokens):
                answer["details"]["top_tokens"] = [likeliest for _, likeliest in tokens]
        answers.append(answer)
    rest = iter(answers)
    return [list(islice(rest, len(each.requests))) for each in asked]


def _stream(front_end: HttpFrontEnd, environ: Environ, model: ServedModel, body: Mapping[str, Any]) -> Reply:
    """The events of one text. Raises ServerError."""
    body = {name: value for name, value in body.items() if name != "stream"}
    asked = _asked(front_end, environ, model, body, None, 1, is_stream=True)
    if len(asked.requests) > 1:
        raise InvalidRequest("'num_return_sequences' and 'best_of' are not supported with 'stream': send 1")
    text = _Text(asked, 0, text_output(model.spec))
    responses = responses_to(front_end, environ, model, asked.requests)
    reply = _Tokens(front_end, environ, responses, text, asked.has_details).reply()
    add_load(front_end, environ, reply.headers, model.spec.name)
    return reply


class _Tokens(EventStream):
    """An event for each token; the last one has the whole text."""

    def __init__(
        self, front_end: HttpFrontEnd, environ: Environ, responses: Responses, text: _Text, has_details: bool
    ) -> None:
        super().__init__(front_end, environ, responses)
        self._text = text
        self._has_details = has_details
        self._index = 0
        self._last: tuple[dict[str, Any], list[dict[str, Any]]] | None = None

    def events_of(self, index: int, response: InferenceResponse) -> bytes:
        if not response.outputs:
            return b""
        text = self._text
        logprobs = text.account.begin_logprobs()
        text.text += text.account.add(response, logprobs)
        found = text.tokens(logprobs)
        if not found:
            return b""
        # Until the next one comes, a token may be the last.
        before = [] if self._last is None else [self._last]
        *sent, self._last = [*before, *found]
        return b"".join(self._event(*each, None, None) for each in sent)

    def end(self) -> bytes:
        if self._last is None:
            return event(orjson.dumps({"error": "the model has made no token", "error_type": "incomplete_generation"}))
        details = {**self._text.details(), "input_length": self._text.account.prompt_tokens}
        return self._event(*self._last, self._text.text, details if self._has_details else None)

    def failure(self, error: ServerError) -> bytes:
        status = self._front_end.status_of(error)
        log_error(error, status, self._environ)
        kind = {400: "validation", 503: "overloaded"}.get(status, "generation")
        return event(orjson.dumps({**error_document(error, self._front_end.options.error_hints), "error_type": kind}))

    def _event(self, token: Any, likeliest: Any, text: str | None, details: Mapping[str, Any] | None) -> bytes:
        self._index += 1
        top = {"top_tokens": likeliest} if likeliest else {}
        made = {"index": self._index, "token": token, **top, "generated_text": text, "details": details}
        return event(orjson.dumps(made))


def _asked(
    front_end: HttpFrontEnd,
    environ: Environ,
    model: ServedModel,
    given: object,
    shared: object,
    prompts: int,
    is_stream: bool = False,
) -> _Prompt:
    """Read the request of one of so many `prompts`. Raises ServerError."""
    own = given if isinstance(given, dict) else {}
    prompt = _prompt_of(given)
    if prompt is None:
        raise InvalidRequest("'inputs' must be a text")
    options: dict[str, Any] = {}
    members = {name: value for name, value in own.items() if name not in (*_PROMPTS, "parameters", "model")}
    for each in (shared, members, own.get("parameters")):
        if each is None:
            continue
        if not isinstance(each, dict):
            raise InvalidRequest("'parameters' must be an object")
        options |= each
    options = {NAMES.get(name) or name: value for name, value in options.items()}
    begins, samples = flag(options, "return_full_text", False), options.get("do_sample")
    if not flag(options, "do_sample", True):
        options["temperature"] = 0
        options.pop("typical_p", None)  # it chooses among samples
    has_details, most = flag(options, "details", False), options.get("top_n_tokens") or 0
    if type(most) is not int or (most and not (has_details or is_stream)):
        raise InvalidRequest("'top_n_tokens' must be a whole number, and needs 'details' to be true")
    grammar = options.get("grammar")
    count = {"n": options.get("num_return_sequences"), "best_of": options.pop("best_of", None)}
    options = {name: value for name, value in options.items() if name not in MEMBERS}
    if samples and model.spec.backend == GENAI:  # others sample unless the temperature is 0
        options["do_sample"] = True
    for name in OWN & options.keys():
        if options[name] and name != "user":
            raise InvalidRequest(f"'{name}' is not supported beside 'inputs'", hint="/v1/completions takes it")
    for name in ONLY_AS_INPUT:
        if name not in model.spec.inputs and options.pop(name, None):
            raise InvalidRequest(f"'{name}' is not supported by model '{model.spec.name}'")
    candidates = None
    if has_details or is_stream:
        if "logprobs" not in model.spec.outputs:
            raise InvalidRequest(
                f"'{'details' if has_details else 'stream'}' is not supported by model '{model.spec.name}', which has "
                "no output 'logprobs' with its tokens",
                hint="/v1/completions streams its text",
            )
        candidates = options["logprobs"] = most
    if grammar is not None:
        if model.spec.backend == GENAI and isinstance(grammar, dict) and grammar.get("type") == "json_schema":
            grammar = {"type": "json_schema", "json_schema": grammar.get("value")}
        options["response_format" if model.spec.backend == GENAI else "grammar"] = grammar
    options["stream"] = is_stream
    stops = options.get("stop") or []
    if stops and "inputs" in own:  # they are in the text, as in that of text-generation-inference
        options.setdefault("include_stop_str_in_output", True)
    requests = [
        request_of(model.spec, prompt, with_seed(options, at)) for at in range(choices_of_each(count, range(prompts)))
    ]
    for request in requests:
        address(environ, request)
        complete(front_end, environ, request)
    seed = options.get("seed")
    return _Prompt(
        requests,
        prompt if begins else "",
        (stops,) if isinstance(stops, str) else tuple(map(str, stops)),
        candidates,
        has_details,
        seed if type(seed) is int else None,
    )


def at_the_root(front_end: HttpFrontEnd, environ: Environ) -> Reply:
    """`POST /`, where huggingface_hub's client sends whatever it asks a server: the only model that fits answers.

    As for Triton, there is nothing to get; a browser is sent to the console if the server has one.
    """
    if environ["REQUEST_METHOD"] != "POST":
        is_for_browser = "text/html" in (header_of(environ, "accept") or "")
        if front_end.options.console and is_for_browser:
            return text_reply(302, b"", TEXT, [("Location", "console")])
        raise RouteNotFound(NO_CONSOLE if is_for_browser else DOCUMENTED)
    body = read_object(front_end, environ)
    name = body.get("model")
    model: ServedModel | None
    if isinstance(name, str) and name:
        model = front_end.engine.model(name)
    else:
        ready = served_models(front_end)
        able = [each for each in ready if generates(each.spec)]
        model = model_that_generates(front_end, None) if able and len(able) == len(ready) else None
    if model is not None and generates(model.spec):
        answer = _invocation(front_end, environ, model, body, None)
        if answer is not None:
            return answer
        raise InvalidRequest("'inputs' must be a text or a list of texts")
    return pipeline_at_the_root(front_end, environ, body)
