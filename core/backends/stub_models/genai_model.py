"""The model of a process: reads requests for text, and has them answered by ONNX Runtime GenAI.

It imports nothing of the server but the library of Python models. Source: docs/text-models.md.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from itertools import count
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
import triton_python_backend_utils as pb_utils
from trident_stub import server
from trident_stub.model import ModelFailed

from genai_decoder import Decoder, Options, Sequence, Text

_MOST_STOPS = 16
_MOST_CANDIDATES = 20
# What the library cannot do, with the values that ask for nothing.
_UNSUPPORTED = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "min_p": 0,
    "best_of": 1,
    "logit_bias": {},
    "echo": False,
    "suffix": "",
    "response_format": {"type": "text"},
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
        self._numbers = count(1)
        self._search = settings.get("search", {})
        self._context = settings["model"]["context_length"]
        self._vocabulary = settings["model"].get("vocab_size", 2**31 - 1)
        self._bos = settings["model"].get("bos_token_id")
        self._most_waiting = int(parameters["max_waiting"])
        self._decoder = Decoder(
            model,
            context=self._context,
            eos=eos if isinstance(eos, list) else [eos],
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
                Answer(request, False, self._tokenizer).fail(str(error), pb_utils.TritonError.INVALID_ARG)

    def finalize(self):
        self._decoder.close()

    def _sequence(self, request):
        """The sequence that `request` begins. Raises ValueError with what is wrong with it."""
        asked = _asked(request)
        tokens = self._prompt(request)
        most = self._context - 1
        if not 1 <= len(tokens) <= most:
            raise ValueError(f"the prompt has {len(tokens)} tokens, the model takes {most}: shorten it")
        limit = min(self._context, len(tokens) + (asked.integer("max_tokens", 1) or self._context))
        streams = pb_utils.get_input_tensor_by_name(request, "stream")
        is_stream = bool(streams.as_numpy().ravel()[0]) if streams is not None else asked.flag("stream")
        answer = Answer(request, is_stream, self._tokenizer)
        text = Text(self._tokenizer.create_stream(), asked.stops())
        candidates = asked.integer("logprobs", 0, _MOST_CANDIDATES)
        return Sequence(answer, tokens, limit, self._options(asked), text, candidates)

    def _prompt(self, request):
        """The tokens of the prompt. Raises ValueError."""
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
        tokens = self._tokenizer.encode(text)
        if len(tokens) > 1 and tokens[0] == tokens[1] == self._bos:  # one by the template, one by the tokenizer
            return tokens[1:]
        return tokens

    def _options(self, asked):
        search = self._search
        temperature = asked.number("temperature", 0, 100)
        samples = search.get("do_sample", False) if temperature is None else temperature > 0
        seed = asked.integer("seed", -(2**63), 2**64)
        adapter = asked.text("adapter")
        if adapter and adapter not in self._decoder.adapter_names:
            known = ", ".join(self._decoder.adapter_names) or "none"
            raise ValueError(f"there is no adapter '{adapter}': the model has {known}")
        return Options(
            do_sample=samples,
            temperature=temperature or search.get("temperature", 1.0),
            top_k=min(_or(asked.integer("top_k", 0), search.get("top_k", 50)), self._vocabulary),
            top_p=_or(asked.number("top_p", 0, 1), search.get("top_p", 1.0)),
            repetition_penalty=asked.number("repetition_penalty", 0.01, 100) or search.get("repetition_penalty", 1.0),
            adapter=adapter,
            seed=None if seed is None or not samples else seed % 2**31,
            number=0 if seed is None or not samples else next(self._numbers),
        )

    def _count(self, sequence):
        for counter, tokens in zip(self._counters, (sequence.prompt_size, sequence.generated)):
            counter.increment(tokens)


class Answer:
    """What the client of one request gets."""

    def __init__(self, request, streams, tokenizer):
        self.streams = streams
        self._tokenizer = tokenizer
        self._sender = request.get_response_sender()

    def is_cancelled(self):
        return self._sender.is_cancelled()

    def is_full(self):
        return self.streams and self._sender.is_full()

    def send(self, text, reason, sequence):
        """Send what is new, and with a `reason` the end, with all that is known of it."""
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
        """As vLLM models describe them: by token, that of the text first."""
        decode = self._tokenizer.decode
        return {
            token: {"logprob": logprob, "rank": rank, "decoded_token": decode([token])}
            for token, logprob, rank in place
        }

    def fail(self, message, code=pb_utils.TritonError.INTERNAL):
        self._sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code)), _FINAL)


class Asked:
    """The options of a request by name. Each method raises ValueError for a value that cannot be."""

    def __init__(self, values):
        self._values = values
        for name, nothing in _UNSUPPORTED.items():
            if values.get(name) not in (None, nothing):
                raise ValueError(f"'{name}' is not supported: leave it out")

    def number(self, name, least, most):
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise ValueError(f"'{name}' is {value!r}: it must be a number from {least} to {most}")
        return float(value)

    def integer(self, name, least, most=2**31 - 1):
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"'{name}' is {value!r}: it must be a whole number from {least} to {most}")
        return value

    def text(self, name):
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"'{name}' is {value!r}: it must be a text")
        return value or ""

    def flag(self, name):
        return self._values.get(name) is True

    def stops(self):
        value = self._values.get("stop")
        stops = [value] if isinstance(value, str) else value or []
        if not isinstance(stops, list) or len(stops) > _MOST_STOPS or not all(isinstance(each, str) for each in stops):
            raise ValueError(f"'stop' is {value!r}: it must be a text, or a list of at most {_MOST_STOPS} texts")
        return [each for each in stops if each]


def _asked(request):
    """What the request asks for: its parameters, and over them `sampling_parameters`."""
    values = json.loads(request.parameters())
    stop = values.get("stop")
    if isinstance(stop, str) and stop.startswith("["):  # a parameter cannot be a list, but be one of JSON
        with suppress(ValueError):
            values["stop"] = json.loads(stop)
    text = _text(request, "sampling_parameters")
    if text:
        sampling = json.loads(text)
        if not isinstance(sampling, dict):
            raise ValueError("'sampling_parameters' must be a JSON object")
        values.update(sampling)
    if "max_completion_tokens" in values:  # the newer name of OpenAI's chats
        values.setdefault("max_tokens", values["max_completion_tokens"])
    return Asked(values)


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


def _adapters(folder):
    """The files of LoRA adapters in the folder by name."""
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
