"""The model of a process: reads requests for text, and has ONNX Runtime GenAI decode the answers in batches.

It imports nothing of the server but the library of Python models. Source: docs/text-models.md.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from codecs import getincrementaldecoder
from collections import Counter, deque
from contextlib import nullcontext, suppress
from itertools import compress, count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime_genai as og
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer
from trident_stub import server
from trident_stub.model import ModelFailed

_MOST_STOPS = 16
# Characters of a grammar: the library compiles it while others wait.
_MOST_GUIDANCE = 1 << 16
_MOST_CANDIDATES = 20
# The options that are read, and those that change no answer. docs/lists.py reads these tables.
_KNOWN = {
    "max_tokens",
    "max_completion_tokens",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "seed",
    "adapter",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "logprobs",
    "stream",
    "add_special_tokens",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
}
_WITHOUT_EFFECT = {"user", "metadata", "safety_identifier", "prompt_cache_key"}
# Options that the library lacks, with the values that ask for nothing.
_UNSUPPORTED = {
    "store": False,
    "service_tier": "auto",
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "min_p": 0,
    "best_of": 1,
    "logit_bias": {},
    "echo": False,
    "suffix": "",
    "skip_special_tokens": True,
    "modalities": ["text"],
}
_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """One instance: the weights, and the thread that decodes."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        folder = parameters["folder"]
        with open(os.path.join(folder, "genai_config.json"), encoding="utf-8") as file:
            settings = json.load(file)
        try:
            model = og.Model(_config(folder, settings, parameters.get("intra_op_thread_count"), args))
            self._tokenizer = og.Tokenizer(model)
        except RuntimeError as error:
            raise ModelFailed(f"ONNX Runtime GenAI {og.__version__} cannot load the folder: {error}") from error
        eos = settings["model"].get("eos_token_id", [])
        eos = eos if isinstance(eos, list) else [eos]
        self._encoder = _encoder(os.path.join(folder, "tokenizer.json"))
        self._pieces = Pieces(os.path.join(folder, "tokenizer.json"), self._tokenizer, eos)
        self._model = model
        self._numbers = count(1)
        self._search = settings.get("search", {})
        self._context = settings["model"]["context_length"]
        self._vocabulary = settings["model"].get("vocab_size", 2**31 - 1)
        self._bos = settings["model"].get("bos_token_id")
        self._most_waiting = int(parameters["max_waiting"])
        self._decoder = Decoder(
            model,
            context=self._context,
            eos=eos,
            pad=settings["model"].get("pad_token_id", 0),
            most_sequences=int(parameters["max_sequences"]),
            most_tokens=int(parameters["max_cache_tokens"]),
            together=server.current().together,
        )
        try:
            self._decoder.load_adapters(_adapters(folder))
        except RuntimeError as error:
            raise ModelFailed(f"ONNX Runtime GenAI {og.__version__} cannot load an adapter: {error}") from error
        self._counters = _counters(args)
        self._decoder.start(self._count)

    def execute(self, requests):
        for request in requests:
            try:
                sequence = self._sequence(request)
                if self._decoder.waiting >= self._most_waiting:
                    sequence.answer.fail(
                        f"{self._most_waiting} requests wait already: try again later", pb_utils.TritonError.UNAVAILABLE
                    )
                else:
                    self._decoder.add(sequence)
            except ValueError as error:
                Answer(request, False, self._pieces).fail(str(error), pb_utils.TritonError.INVALID_ARG)

    def finalize(self):
        self._decoder.close()

    def _sequence(self, request):
        """The sequence that `request` begins. Raises ValueError with what is wrong with it."""
        asked = _asked(request)
        tokens = self._prompt(request, asked.flag("add_special_tokens", True))
        most = self._context - 1
        if not tokens:
            raise ValueError("the prompt has no token: send a text that the model goes on with")
        if len(tokens) > most:
            # In these words several clients, such as LangChain's, know this error from others.
            raise ValueError(f"the prompt is too long: it has {len(tokens)} tokens, the model takes {most}")
        limit = min(self._context, len(tokens) + (asked.integer("max_tokens", 1) or self._context))
        streams = pb_utils.get_input_tensor_by_name(request, "stream")
        is_stream = bool(streams.as_numpy().ravel()[0]) if streams is not None else asked.flag("stream")
        answer = Answer(request, is_stream, self._pieces)
        stream = Stream(self._tokenizer.create_stream(), self._pieces)
        text = Text(stream, asked.stops(), asked.flag("include_stop_str_in_output"))
        ends = asked.tokens("stop_token_ids", self._vocabulary)
        least = asked.integer("min_tokens", 0) or 0
        if least > limit - len(tokens):
            raise ValueError(f"'min_tokens' is {least}: at most {limit - len(tokens)} tokens are generated")
        if least and (ends or asked.stops()):
            raise ValueError("'min_tokens' is not supported beside 'stop' and 'stop_token_ids': leave it out")
        candidates = asked.integer("logprobs", 0, _MOST_CANDIDATES)
        options = self._options(asked, least and len(tokens) + least)
        return Sequence(answer, tokens, limit, options, text, candidates, ends)

    def _prompt(self, request, has_special):
        """The tokens of the prompt, which `has_special` ones as the tokenizer has them. Raises ValueError."""
        text = _text(request, "text_input")
        given = pb_utils.get_input_tensor_by_name(request, "prompt_token_ids")
        ids = [] if given is None else given.as_numpy().ravel().tolist()
        if text and ids:
            raise ValueError("'text_input' and 'prompt_token_ids' are both a prompt: leave one empty")
        if ids:
            wrong = next((id for id in ids if not 0 <= id < self._vocabulary), None)
            if wrong is not None:
                raise ValueError(
                    f"there is no token id {wrong}: the model's vocabulary has 0 to {self._vocabulary - 1}"
                )
            return ids
        if not text:
            raise ValueError("'text_input' is empty: send a text that the model goes on with")
        tokens = self._encoder.encode(text, add_special_tokens=has_special).ids
        if len(tokens) > 1 and tokens[0] == tokens[1] == self._bos:  # one by the template, one by the tokenizer
            return tokens[1:]
        return tokens

    def _options(self, asked, min_length):
        search = self._search
        temperature = asked.number("temperature", 0, 100)
        samples = asked.flag("do_sample", None)
        if samples is None:
            samples = search.get("do_sample", False) if temperature is None else temperature > 0
        elif samples and temperature == 0:
            raise ValueError("'do_sample' is true, and 'temperature' 0: the likeliest token is not a sample")
        seed = asked.integer("seed", -(2**63), 2**64)
        adapter = asked.text("adapter")
        if adapter and adapter not in self._decoder.adapter_names:
            known = ", ".join(self._decoder.adapter_names) or "none"
            raise ValueError(f"there is no adapter '{adapter}': the model has {known}")
        guidance = asked.guidance()
        if guidance and (reason := self._reason_against(guidance)):
            raise ValueError(f"the text cannot be guided: {reason}")
        ignores_end = asked.flag("ignore_eos")
        if guidance and (min_length or ignores_end):
            name = "min_tokens" if min_length else "ignore_eos"
            raise ValueError(f"'{name}' is not supported where a grammar says how the text ends: leave it out")
        is_alone = bool(guidance) or bool(min_length) or (seed is not None and samples)
        return Options(
            do_sample=samples,
            temperature=temperature or search.get("temperature", 1.0),
            # All tokens are 0 here, and -1, too, for vLLM.
            top_k=min(max(0, _or(asked.integer("top_k", -1), search.get("top_k", 50))), self._vocabulary),
            top_p=_or(asked.number("top_p", 0, 1), search.get("top_p", 1.0)),
            repetition_penalty=asked.number("repetition_penalty", 0.01, 100) or search.get("repetition_penalty", 1.0),
            adapter=adapter,
            seed=None if seed is None or not samples else seed % 2**31,
            number=next(self._numbers) if is_alone else 0,
            guidance=guidance,
            min_length=min_length,
            ignores_end=ignores_end,
        )

    def _reason_against(self, guidance):
        """Return why the library cannot follow `guidance`, "" if it can."""
        if "\0" in guidance[1]:
            return "it has a NUL character, at which the library would end"
        if not self._refusal(("regex", "(")):  # builds without guidance follow nothing in silence
            return f"this build of ONNX Runtime GenAI {og.__version__} has no guidance"
        return self._refusal(guidance)

    def _refusal(self, guidance):
        parameters = og.GeneratorParams(self._model)
        parameters.set_search_options(max_length=2, batch_size=1)
        try:
            parameters.set_guidance(*guidance)
            og.Generator(self._model, parameters)
        except (RuntimeError, AttributeError) as error:
            return str(error)
        return ""

    def _count(self, sequence):
        for counter, tokens in zip(self._counters, (sequence.prompt_size, sequence.generated)):
            counter.increment(tokens)


class Answer:
    def __init__(self, request, streams, pieces):
        """`pieces` tells what tokens stand for."""
        self.streams = streams
        self._pieces = pieces
        self._sender = request.get_response_sender()

    def is_cancelled(self):
        return self._sender.is_cancelled()

    def is_full(self):
        return self.streams and self._sender.is_full()

    def send(self, text, reason, sequence):
        """Send new text, and with a `reason` the final response with its details."""
        tensors = [pb_utils.Tensor("text_output", np.array([text.encode("utf-8", "replace")], np.object_))]
        if sequence.places:
            places = json.dumps([self._candidates(place) for place in sequence.places])
            tensors.append(pb_utils.Tensor("logprobs", np.array([places.encode()], np.object_)))
        if reason:
            tensors += [
                pb_utils.Tensor("finish_reason", np.array([reason.encode()], np.object_)),
                pb_utils.Tensor("num_input_tokens", np.array([sequence.prompt_size], np.uint32)),
                pb_utils.Tensor("num_output_tokens", np.array([sequence.generated], np.uint32)),
            ]
        self._sender.send(pb_utils.InferenceResponse(tensors), _FINAL if reason else 0)

    def _candidates(self, place):
        """As vLLM models describe them: by token, that of the text first.

        A part of a character has its `bytes`. A token that is not in the text, as that of the end, is `special`.
        """
        found = {}
        for token, logprob, rank in place:
            content = self._pieces.bytes_of(token)
            text = content.decode("utf-8", "replace")
            found[token] = {"logprob": logprob, "rank": rank, "decoded_token": text}
            if text.encode() != content:
                found[token]["bytes"] = list(content)
            if self._pieces.is_special(token):
                found[token]["special"] = True
        return found

    def fail(self, message, code=pb_utils.TritonError.INTERNAL):
        self._sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code)), _FINAL)


class Pieces:
    """The bytes of each token, by the vocabulary of the Hub's tokenizer.

    The library's tokenizer decodes whole texts: it has no space at their beginning, and no part of a character.
    """

    def __init__(self, path, tokenizer, eos):
        self._tokenizer = tokenizer
        self._special = {*eos}
        self._vocabulary = self._read(path)

    def is_special(self, token):
        """Return True for a token that is not in the text."""
        return token in self._special

    def bytes_of(self, token):
        found = self._vocabulary.get(token)
        return self._tokenizer.decode([token]).encode() if found is None else found

    def _read(self, path):
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            vocabulary = document["model"]["vocab"]
            steps = json.dumps([document.get("decoder"), document.get("pre_tokenizer")])
            added = {each["id"]: each["content"].encode() for each in document.get("added_tokens") or ()}
            self._special |= {each["id"] for each in document.get("added_tokens") or () if each.get("special")}
            pieces = enumerate(each for each, _ in vocabulary) if isinstance(vocabulary, list) else None
            pieces = pieces or ((token, piece) for piece, token in vocabulary.items())
            read = _of_byte_level if '"ByteLevel"' in steps else _of_sentencepiece
            return {**{token: read(piece) for token, piece in pieces}, **added}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}  # it has another kind of tokenizer


# The characters that stand for bytes in vocabularies of GPT-2's kind: printable ones for themselves, others in order.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {**{chr(byte): byte for byte in _PRINTABLE}, **{chr(0x100 + at): byte for at, byte in enumerate(_OTHERS)}}


def _of_byte_level(piece):
    return bytes(_BYTES[each] for each in piece) if all(each in _BYTES for each in piece) else piece.encode()


def _of_sentencepiece(piece):
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("\u2581", " ").encode()


class Stream:
    """The text of tokens as they come. Bytes that are no character become U+FFFD, as in the Hub's tokenizers.

    The library's stream has the characters of several tokens as well, but leaves such bytes out, and NUL.
    """

    def __init__(self, stream, pieces):
        self._stream = stream
        self._pieces = pieces
        self._parts = getincrementaldecoder("utf-8")("replace")

    def decode(self, token):
        if self._pieces.is_special(token):
            return ""
        content = self._pieces.bytes_of(token)
        if b"\0" in content or "\ufffd" in content.decode("utf-8", "replace"):
            return self._parts.decode(content)
        return self.rest() + self._stream.decode(token)

    def rest(self):
        """Return the replacement of an incomplete character."""
        return self._parts.decode(b"", final=True)


class Asked:
    """The options of a request by name. Each method raises ValueError for a value that cannot be."""

    def __init__(self, parameters, sampling):
        """`sampling` goes over the request's `parameters`, which may have members for others than the model."""
        self._values = values = {**parameters, **sampling}
        for name, nothing in _UNSUPPORTED.items():
            if values.get(name) not in (None, nothing):
                raise ValueError(f"'{name}' is not supported: leave it out")
        for name, value in sampling.items():
            if value is not None and name not in _KNOWN | _WITHOUT_EFFECT and name not in _UNSUPPORTED:
                raise ValueError(f"'{name}' is not supported: leave it out")

    def _value(self, name, is_right, wanted):
        value = self._values.get(name)
        if value is not None and not is_right(value):
            raise ValueError(f"'{name}' is {value!r}: it must be {wanted}")
        return value

    def number(self, name, least, most):
        def is_right(value):
            return type(value) in (int, float) and least <= value <= most

        value = self._value(name, is_right, f"a number from {least} to {most}")
        return None if value is None else float(value)

    def integer(self, name, least, most=2**31 - 1):
        def is_right(value):
            return type(value) is int and least <= value <= most

        return self._value(name, is_right, f"a whole number from {least} to {most}")

    def text(self, name):
        return self._value(name, lambda value: isinstance(value, str), "a text") or ""

    def flag(self, name, default=False):
        return _or(self._value(name, lambda value: isinstance(value, bool), "true or false"), default)

    def tokens(self, name, most):
        def is_right(value):
            return not value or (
                isinstance(value, list) and all(type(each) is int and 0 <= each < most for each in value)
            )

        return frozenset(self._value(name, is_right, f"a list of token ids below {most}") or ())

    def guidance(self):
        """The kind and the text of a grammar that the answer follows, as the library takes them; () for any answer."""
        asked = [(name, kind, value) for name in _GUIDED for kind, value in _guides(name, self._values.get(name))]
        if len(asked) > 1:
            raise ValueError(f"'{asked[0][0]}' and '{asked[1][0]}' both guide the text: send one")
        for name, kind, value in asked:
            try:
                text = _GRAMMARS[kind][1](value)
            except (TypeError, ValueError) as error:
                raise ValueError(f"'{name}' cannot be read: {error}") from None
            if len(text) > _MOST_GUIDANCE:
                raise ValueError(f"'{name}' makes a grammar of more than {_MOST_GUIDANCE} characters: shorten it")
            return _unforced(_GRAMMARS[kind][0], text)
        return ()

    def stops(self):
        value = self._values.get("stop")
        stops = [value] if isinstance(value, str) else value or []
        if (
            not isinstance(stops, list)
            or len(stops) > _MOST_STOPS
            or not all(each and isinstance(each, str) for each in stops)
        ):
            raise ValueError(f"'stop' is {value!r}: it must be a text, or a list of at most {_MOST_STOPS}, none empty")
        return stops


_GUIDED = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


def _guides(name, value):
    """The kinds of guidance in the option `name`, as vLLM calls them, each with its value."""
    if value is None:
        return []
    if name.startswith("guided_"):
        return [(name[len("guided_") :], value)]
    if not isinstance(value, dict):
        raise ValueError(f"'{name}' is {value!r}: it must be an object")
    if name == "response_format":
        kind, schema = value.get("type"), value.get("json_schema")
        known = {"text": (), "json_object": ("value",), "json": ("value",), "regex": ("value",)}
        known["json_schema"] = ("json_schema",)
        if kind not in known:
            raise ValueError(f"'response_format' has the type {kind!r}: it may be {', '.join(known)}")
        if others := sorted(key for key in value.keys() - {"type", *known[kind]} if value[key] is not None):
            raise ValueError(f"'response_format' of the type {kind} has '{others[0]}', which is not supported")
        if kind == "json_schema":
            schema = schema if isinstance(schema, dict) else {"schema": None}
            if unknown := sorted(schema.keys() - {"name", "description", "schema", "strict"}):
                raise ValueError(f"'json_schema' of 'response_format' has '{unknown[0]}', which is not supported")
            return [("json", schema.get("schema", True))]
        if value.get("value") is not None or kind in ("json", "regex"):  # as text-generation-inference has it
            return [("regex" if kind == "regex" else "json", value.get("value"))]
        value = {"json_object": kind == "json_object"}
    found = [(kind, each) for kind, each in value.items() if each is not None and each is not False]
    for kind, _ in found:
        if kind not in _GRAMMARS:
            raise ValueError(f"'{name}' has '{kind}', which is not supported: it may have {', '.join(_GRAMMARS)}")
    return found


def _schema_text(value):
    schema = json.loads(value) if isinstance(value, str) else value
    if not isinstance(schema, (dict, bool)):
        raise ValueError("it must be a JSON schema")
    return json.dumps(schema)


def _choices_text(value):
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise ValueError("it must be a list of texts")
    return "start: " + " | ".join(json.dumps(each, ensure_ascii=False) for each in value)


def _grammar_text(value):
    if not isinstance(value, str) or not value:
        raise ValueError("it must be a text")
    return value


# The library's name of each kind of guidance, and what makes its text.
_GRAMMARS = {
    "json": ("json_schema", _schema_text),
    "json_object": ("json_schema", lambda value: '{"type": "object"}'),
    "regex": ("regex", _grammar_text),
    "choice": ("lark_grammar", _choices_text),
    "grammar": ("lark_grammar", _grammar_text),
}


def _unforced(kind, text):
    """Return the kind and text of a grammar that leaves each token to the model where characters may be several tokens.

    What can only go on in one way, the library writes in tokens of whole characters, and fails within one.
    """
    if (text.isascii() and "\\" not in text) or "%llguidance" in text:
        return kind, text
    if kind == "json_schema":
        text = f"start: %json {text}"
    elif kind == "regex":
        text = "start: /" + re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", text, flags=re.DOTALL) + "/"
    return "lark_grammar", text + '\n%llguidance {"no_forcing": true}'


def _asked(request):
    """Return the options of the request: its parameters, and over them `sampling_parameters`."""
    values = json.loads(request.parameters())
    for name in ("stop", "stop_token_ids", *_GUIDED):  # a parameter cannot be a list or an object, but be one of JSON
        value = values.get(name)
        if isinstance(value, str) and value.startswith(("[", "{")) and name not in ("guided_regex", "guided_grammar"):
            with suppress(ValueError):
                values[name] = json.loads(value)
    text = _text(request, "sampling_parameters")
    sampling = json.loads(text) if text else {}
    if not isinstance(sampling, dict):
        raise ValueError("'sampling_parameters' must be a JSON object")
    asked = {**values, **sampling}
    if "max_completion_tokens" in asked:  # the newer name of OpenAI's chats
        values.setdefault("max_tokens", asked["max_completion_tokens"])
    return Asked(values, sampling)


def _text(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    values = [] if tensor is None else tensor.as_numpy().ravel().tolist()
    if not values:
        return ""
    try:
        return values[0].decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"'{name}' is not UTF-8: {error}") from None


def _or(value, default):
    return default if value is None else value


def _config(folder, settings, threads, args):
    """The folder's configuration, for the device of this instance. Without `threads` the library decides."""
    config = og.Config(folder)
    decoder = settings["model"]["decoder"]
    options = decoder.get("session_options", {})
    if threads:
        session = {"intra_op_num_threads": int(threads)}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
    providers = {name.lower() for provider in options.get("provider_options", []) for name in provider}
    if args["model_instance_kind"] == "GPU":
        import onnxruntime  # takes too long for the other processes

        # CUDA's libraries, which pip installs where the linker does not search.
        onnxruntime.preload_dlls()
        if "cuda" not in providers:
            config.clear_providers()
            config.append_provider("cuda")
        config.set_provider_option("cuda", "device_id", args["model_instance_device_id"])
    elif "cuda" in providers:
        config.clear_providers()
    return config


def _encoder(path):
    """Return the Hub's tokenizer for prompts. That of ONNX Runtime GenAI has no special tokens, and other pieces."""
    try:
        encoder = Tokenizer.from_file(path)
    except Exception as error:  # the library raises nothing narrower
        raise ModelFailed(f"{path} cannot be read: {error}") from error
    encoder.no_padding()
    encoder.no_truncation()
    return encoder


def _adapters(folder):
    found = sorted([*Path(folder).glob("*.onnx_adapter"), *Path(folder).glob("adapters/*.onnx_adapter")])
    return {path.name[: -len(".onnx_adapter")]: str(path) for path in found}


def _counters(args):
    """Two counters: tokens of prompts, and generated ones. None, if the server has no metrics."""
    labels = {"model": args["model_name"], "version": args["model_version"]}
    texts = {
        "genai_prompt_tokens_total": "Tokens of the prompts of requests that have ended",
        "genai_generated_tokens_total": "Tokens that were generated for requests that have ended",
    }
    try:
        families = [pb_utils.MetricFamily(name, text, pb_utils.MetricFamily.COUNTER) for name, text in texts.items()]
    except pb_utils.TritonModelException:
        return []
    return [family.Metric(labels=labels) for family in families]


_log = logging.getLogger("genai")

# How long tokens are generated before they are looked at and sent: as long as a film shows a picture.
# A step reads all weights, so that nothing of this program is in the processor's caches afterwards: the first look
# at a token takes ten times as long as the second.
_TURN_S = 1 / 24
# Tokens that a sequence may be ahead of its client, beyond those that the server's window holds.
_MOST_UNSENT = 64
# How often a client is looked at for which alone the thread waits.
_LOOK_AGAIN_S = 0.02
# A step takes as long as this many rows, whatever the number of rows: it reads all weights.
_FIXED_ROWS = 4
_WEIGHT_OF_NEW = 0.2
# In place of minus infinity, which JSON does not have.
_LEAST_LOGPROB = -9999.0


class Options(NamedTuple):
    """Options by which tokens are chosen. Sequences with equal ones can be decoded together.

    `seed` is None for any; `number` keeps sequences with a seed or `guidance` apart, so that others do not change their
    answers. `guidance` is the kind and text of a grammar, or (). Before `min_length` tokens, with those of the prompt,
    and anywhere if it `ignores_end`, the model cannot end the text.
    """

    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    adapter: str
    seed: int | None
    number: int
    guidance: tuple[()] | tuple[str, str] = ()
    min_length: int = 0
    ignores_end: bool = False

    def search(self, length):
        """As the library's search options for texts of up to `length` tokens."""
        found = {"do_sample": self.do_sample, "repetition_penalty": self.repetition_penalty}
        if self.min_length or self.ignores_end:
            found["min_length"] = length if self.ignores_end else self.min_length
        if self.do_sample:
            found.update(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        if self.seed is not None:
            found["random_seed"] = self.seed
        return found


class Text:
    """The text of the tokens that were generated, up to a stop string.

    What may be the beginning of a stop string is kept back until more is known.
    """

    def __init__(self, pieces, stops, has_stop=False):
        """`pieces` gives the text of each token. With `has_stop` the stop string belongs to the text."""
        self._pieces = pieces
        self._has_stop = has_stop
        self._stops = stops
        self._kept = ""

    def add(self, token):
        """The text that is certain now, and whether a stop string has come."""
        piece = self._pieces.decode(token)
        if not self._stops:
            return piece, False
        self._kept += piece
        ends = [(at, at + len(stop)) for stop in self._stops if (at := self._kept.find(stop)) >= 0]
        if ends:
            text, self._kept = self._kept[: min(ends)[self._has_stop]], ""
            self._pieces.rest()
            return text, True
        keep = max((_overlap(self._kept, stop) for stop in self._stops), default=0)
        text, self._kept = self._kept[: len(self._kept) - keep], self._kept[len(self._kept) - keep :]
        return text, False

    def end(self, token):
        """The text of a token that ends the sequence, as a stop string does."""
        return self.add(token)[0] if self._has_stop else ""

    def rest(self):
        """Return the text that was held back."""
        text, self._kept = self._kept, ""
        return text + self._pieces.rest()


def _overlap(text, stop):
    """Return the number of characters at the end of `text` that begin `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)


class Sequence:
    """The tokens of one request, and what its client has got of them. On the decoding thread, once it was added."""

    def __init__(self, answer, prompt, limit, options, text, candidates=None, ends=frozenset()):
        """`answer` tells the client; `limit` is how many tokens there may be with those of `prompt`.

        `candidates` is how many of the likeliest tokens the client wants to know at each place, None for nothing.
        Tokens in `ends` end the sequence, as those of the model do.
        """
        self.answer = answer
        self.tokens = list(prompt)
        self.prompt_size = len(self.tokens)
        self.limit = limit
        self.options = options
        self.candidates = candidates
        # For each unsent token, itself and the likeliest ones, as token, logarithm of its probability and rank.
        self.places = []
        self._text = text
        self._ends = ends
        self._unsent = ""
        self._unsent_tokens = 0
        self.finish_reason = ""

    @property
    def generated(self):
        return len(self.tokens) - self.prompt_size

    @property
    def is_behind(self):
        """True if the client has taken so little that nothing should be generated for it now.

        Where there is guidance never: a grammar cannot be gone on with in another batch.
        """
        return self._unsent_tokens >= _MOST_UNSENT and not self.options.guidance and self.answer.is_full()

    def note_place(self, logits, token):
        """Note how likely `token` was, which is chosen by `logits`, and which ones were the likeliest."""
        rest = logits - logits.max()
        total = logits.max() + np.log(np.exp(rest).sum())
        ranks = {token: 1 + int(np.count_nonzero(logits > logits[token]))}
        for rank in range(1, self.candidates + 1):  # faster than a partition, which takes long where many are equal
            each = int(rest.argmax())
            ranks.setdefault(each, rank)
            rest[each] = -np.inf
        self.places.append(
            [(each, max(float(logits[each] - total), _LEAST_LOGPROB), rank) for each, rank in ranks.items()]
        )

    def add(self, tokens, eos):
        """Note tokens and send their text. Returns whether the sequence has ended; what follows its end is ignored."""
        for token in tokens:
            self.tokens.append(token)
            self._unsent_tokens += 1
            is_stopped = token in eos or token in self._ends
            if token in self._ends:
                self._unsent += self._text.end(token)
            elif not is_stopped:
                text, is_stopped = self._text.add(token)
                self._unsent += text
            if is_stopped or len(self.tokens) >= self.limit:
                self.end("stop" if is_stopped else "length")
                return True
        self.send()
        return False

    def send(self):
        """Send pending text unless the client reads too slowly."""
        if self._unsent and self.answer.streams and not self.answer.is_full():
            self.answer.send(self._unsent, "", self)
            self._unsent, self._unsent_tokens = "", 0
            self.places.clear()

    def end(self, reason):
        self.finish_reason = reason
        del self.places[self._unsent_tokens :]
        self.answer.send(self._unsent + self._text.rest(), reason, self)


class Speed:
    """Measured times of steps and prompts, in seconds."""

    def __init__(self):
        self._row = 0.0
        self._token = 0.0

    def note_step(self, rows, duration):
        self._row += (duration / (_FIXED_ROWS + rows) - self._row) * (_WEIGHT_OF_NEW if self._row else 1)

    def note_prompt(self, tokens, duration):
        self._token += (duration / tokens - self._token) * (_WEIGHT_OF_NEW if self._token else 1)

    def pays_to_join(self, rows, tokens, alive, rounds):
        """Return True if batches of `rows` rows should become one of `alive` sequences, which reads `tokens` tokens.

        The sequences have about `rounds` tokens to go.
        """
        separate = sum(_FIXED_ROWS + count for count in rows)
        saved = (separate - (_FIXED_ROWS + alive)) * self._row * rounds
        return saved > tokens * self._token + _FIXED_ROWS * self._row


def length_of(sequences, context):
    """The tokens of a row of a batch: it is padded to the longest one, and may need as many more as any of them."""
    width = max(len(sequence.tokens) for sequence in sequences)
    return min(context, width + max(sequence.limit - len(sequence.tokens) for sequence in sequences))


class Batch:
    """Sequences that are decoded together, with equal options. A row without a sequence has ended."""

    def __init__(self, model, sequences, adapters, pad, context, speed):
        """Reads the tokens of all `sequences`. Raises RuntimeError."""
        self.rows = list(sequences)
        self.options = options = sequences[0].options
        self.length = length_of(sequences, context)
        self._speed = speed
        self._steps = 0
        self._width = width = max(len(sequence.tokens) for sequence in sequences)
        tokens = np.full((len(sequences), width), pad, np.int32)
        for row, sequence in zip(tokens, sequences):
            row[: len(sequence.tokens)] = sequence.tokens
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(max_length=self.length, batch_size=len(sequences), **options.search(self.length))
        begin = time.monotonic()
        if options.guidance:
            parameters.set_guidance(*options.guidance)
        self._generator = og.Generator(model, parameters)
        if options.adapter:
            self._generator.set_active_adapter(adapters, options.adapter)
        self._append(tokens, pad)
        speed.note_prompt(tokens.size, time.monotonic() - begin)

    def _append(self, tokens, pad):
        """Read the prompts. A single one that ends with `pad` is read in two parts.

        The library takes the end of a part of several tokens for padding, and goes on after the token before.
        """
        if len(tokens) > 1:
            self._generator.append_tokens(tokens)
            return
        (prompt,) = tokens
        parts = [prompt[:-1], prompt[-1:]] if len(prompt) > 1 and prompt[-1] == pad else [prompt]
        for part in parts:
            self._generator.append_tokens(part)

    @property
    def alive(self):
        return [sequence for sequence in self.rows if sequence is not None]

    @property
    def is_done(self):
        return not self.alive or self._generator.is_done()

    def run(self, eos, seconds, arrived):
        """The next tokens of each row: one at first, then as many as `seconds` allow.

        Ends early when a row ends, or when something has `arrived`. Raises RuntimeError.
        """
        generate, get, clock = self._generator.generate_next_token, self._generator.get_next_tokens, time.monotonic
        lives = [sequence is not None for sequence in self.rows]
        left = [self.length - self._width - self._steps, *(each.limit - len(each.tokens) for each in self.alive)]
        most = min(left) if self._steps else 1
        found = []
        curious = [each for each in enumerate(self.rows) if each[1] is not None and each[1].candidates is not None]
        begin = clock()
        while True:
            # They are computed here, and not once more below.
            logits = self._generator.get_logits() if curious else None
            generate()
            tokens = get().tolist()
            found.append(tokens)
            for at, sequence in curious:
                sequence.note_place(logits[at, -1], tokens[at])
            now = clock()
            if len(found) >= most or now - begin >= seconds or arrived or not eos.isdisjoint(compress(tokens, lives)):
                break
        if self._steps:  # the first one only chooses among what reading the prompt has computed
            self._speed.note_step(len(self.rows), (now - begin) / len(found))
        self._steps += len(found)
        return zip(*found)

    def drop(self, sequence):
        self.rows[self.rows.index(sequence)] = None


class Decoder:
    """Decodes sequences on a thread of its own. `add` and `close` on any other."""

    def __init__(self, model, *, context, eos, pad, most_sequences, most_tokens, together=nullcontext):
        """`together` makes a context: clients get what is sent in it at its end."""
        self._model = model
        self._together = together
        self._context = context
        self._eos = frozenset(eos)
        self._pad = pad
        self._most_sequences = most_sequences
        self._most_tokens = most_tokens
        self._adapters = og.Adapters(model)
        self.adapter_names = ()
        self._speed = Speed()
        self._changed = threading.Condition()
        self._arrived = deque()
        self._is_over = False
        self._waiting = deque()
        self._behind = []
        self._batches = []
        self._on_end = None
        self._own_thread = threading.Thread(target=self._run, name="decoder", daemon=True)

    def load_adapters(self, files):
        """Load adapters from `files`, by name. Raises RuntimeError."""
        for name, file in files.items():
            self._adapters.load(file, name)
        self.adapter_names = tuple(files)

    def start(self, on_end):
        """`on_end` is called with each sequence that has ended, on the decoding thread."""
        self._on_end = on_end
        self._own_thread.start()

    @property
    def waiting(self):
        return len(self._arrived) + len(self._waiting)

    def add(self, sequence):
        """Begin a sequence as soon as there is room. Raises ValueError for one that never fits."""
        if sequence.limit > self._most_tokens:
            raise ValueError(
                f"prompt and max_tokens make {sequence.limit} tokens, and there is memory for {self._most_tokens}: "
                "ask for fewer"
            )
        with self._changed:
            self._arrived.append(sequence)
            self._changed.notify()

    def close(self):
        """End the thread without answering its requests."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._own_thread.join()

    def _run(self):
        try:
            self._decode()
        except BaseException:
            # This process could answer no request any more: the server answers them all, and starts another one.
            _log.exception("the thread that decodes has failed")
            os._exit(1)

    def _decode(self):
        while True:
            with self._changed:
                while not (self._is_over or self._arrived or self._batches or self._waiting or self._behind):
                    self._changed.wait()
                if not (self._is_over or self._arrived or self._batches):
                    self._changed.wait(_LOOK_AGAIN_S)
                if self._is_over:
                    return
                self._waiting += self._arrived
                self._arrived.clear()
            self._turn()

    def _turn(self):
        """Let sequences come and go, and generate tokens for those that are decoded."""
        self._leave()
        for options, sequences in self._admitted().items():
            self._join(options, sequences)
        for batch in self._batches:
            alive = batch.alive
            try:
                found = batch.run(self._eos, _TURN_S / len(self._batches), self._arrived)
            except RuntimeError as error:
                self._fail(batch.alive, error)
                batch.rows = []
            else:
                with self._together():
                    for at, tokens in enumerate(found):
                        if (sequence := batch.rows[at]) is not None and sequence.add(tokens, self._eos):
                            batch.rows[at] = None
                if batch.is_done:  # its rows are full, though some sequences may not be
                    self._waiting.extendleft(batch.alive)
                    batch.rows = []
            for sequence in alive:
                if sequence.finish_reason:
                    self._on_end(sequence)
        self._batches = [batch for batch in self._batches if batch.alive]

    def _leave(self):
        """Drop sequences whose clients have cancelled, and set those aside whose clients are behind."""
        for batch in self._batches:
            for sequence in batch.alive:
                if sequence.answer.is_cancelled():
                    batch.drop(sequence)
                    self._cancel(sequence)
                elif sequence.is_behind:
                    batch.drop(sequence)
                    self._behind.append(sequence)
        self._batches = [batch for batch in self._batches if batch.alive]
        for sequences in (self._waiting, self._behind):
            for sequence in [each for each in sequences if each.answer.is_cancelled()]:
                sequences.remove(sequence)
                self._cancel(sequence)
        for sequence in [each for each in self._behind if not each.answer.is_full()]:
            self._behind.remove(sequence)
            sequence.send()
            self._waiting.appendleft(sequence)

    def _cancel(self, sequence):
        sequence.end("cancelled")
        self._on_end(sequence)

    def _admitted(self):
        """The waiting sequences for which there is room, in their order, by their options."""
        rows = sum(len(batch.alive) for batch in self._batches)
        tokens = sum(len(batch.rows) * batch.length for batch in self._batches)
        found = {}
        while self._waiting and rows < self._most_sequences:
            sequence = self._waiting[0]
            group = [*found.get(sequence.options, ()), sequence]
            others = [each for options, each in found.items() if options != sequence.options]
            if tokens + sum(map(self._size, [*others, group])) > self._most_tokens:
                break
            self._waiting.popleft()
            rows += 1
            found[sequence.options] = group
        # Batches from which sequences have gone, or that could be one, may be made anew even without arrivals.
        counts = Counter(batch.options for batch in self._batches)
        for batch in self._batches:
            if counts[batch.options] > 1 or 2 * len(batch.alive) <= len(batch.rows):
                found.setdefault(batch.options, [])
        return found

    def _size(self, sequences):
        return len(sequences) * length_of(sequences, self._context)

    def _join(self, options, arrived):
        """Begin a batch for the sequences that have `arrived`, together with those that have the same options."""
        batches = [batch for batch in self._batches if batch.options == options]
        running = [sequence for batch in batches for sequence in batch.alive]
        together = running + arrived
        if batches:
            width = max(len(sequence.tokens) for sequence in together)
            alone = len(arrived) * max((len(sequence.tokens) for sequence in arrived), default=0)
            rows = [len(batch.rows) for batch in batches] + ([len(arrived)] if arrived else [])
            rounds = sum(each.limit - len(each.tokens) for each in together) / len(together) / 2
            again = width * len(together) - alone
            pays = self._speed.pays_to_join(rows, again, len(together), rounds)
            is_read_alone = self._pad in (each.tokens[-1] for each in running)
            if pays and not is_read_alone and self._size(together) <= self._most_tokens:
                self._batches = [batch for batch in self._batches if batch.options != options]
                arrived = together
        alone = [[sequence] for sequence in arrived if sequence.tokens[-1] == self._pad]
        for group in [*alone, [sequence for sequence in arrived if sequence.tokens[-1] != self._pad]]:
            if not group:
                continue
            try:
                self._batches.append(Batch(self._model, group, self._adapters, self._pad, self._context, self._speed))
            except RuntimeError as error:
                self._fail(group, error)

    def _fail(self, sequences, error):
        _log.error("decoding failed: %s", error)
        for sequence in sequences:
            sequence.finish_reason = "error"
            if sequence.options.guidance:
                reason = str(error).splitlines()[0]
                sequence.answer.fail(
                    f"ONNX Runtime GenAI {og.__version__} cannot go on with this grammar: {reason}",
                    pb_utils.TritonError.UNSUPPORTED,
                )
            else:
                sequence.answer.fail(str(error))
