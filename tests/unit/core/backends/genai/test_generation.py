"""The decoding thread, with ONNX Runtime GenAI and a model that counts; and the settings of a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import onnxruntime_genai as og
import pytest
from tokenizers import Tokenizer

from tests.genai_folders import WORDS, write_counter
from tests.waiting import until
from trident.core.backends.genai import GenaiBackend, read_generation_folder
from trident.core.backends.stub_models.genai_model import (
    Decoder,
    Options,
    Pieces,
    Sequence,
    Speed,
    Stream,
    Text,
)
from trident.core.config.schema import ModelConfig
from trident.core.config.validate import validate_against_signature
from trident.core.errors import ConfigInvalid, ModelLoadFailed

CONTEXT = 2048
GREEDY = Options(False, 1.0, 50, 1.0, 1.0, "", None, 0)


class Client:
    """Receives the responses of one sequence, unless it is slow or disconnected."""

    streams = True

    def __init__(self) -> None:
        self.text = ""
        self.reason = ""
        self.error = ""
        self.slow = False
        self.gone = False

    def is_full(self) -> bool:
        return self.slow

    def is_cancelled(self) -> bool:
        return self.gone

    def send(self, text: str, reason: str, sequence: Any) -> None:
        self.text += text
        self.reason = reason

    def fail(self, message: str) -> None:
        self.error = message


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_counter(tmp_path_factory.mktemp("counter"), context=CONTEXT, is_endless=True)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return og.Model(str(folder))


Begin = Callable[..., Client]


@pytest.fixture
def begin(folder: Path, model: Any) -> Iterator[Begin]:
    """Begins a sequence on a decoder for three sequences and 2,200 tokens."""
    decoder = Decoder(model, context=CONTEXT, eos=[0], pad=1, most_sequences=3, most_tokens=2200)
    tokenizer = og.Tokenizer(model)
    pieces = Pieces(folder / "tokenizer.json", tokenizer, [0])
    decoder.start(lambda sequence: None)

    def add(prompt: str, count: int, *, options: Options = GREEDY, stops: tuple[str, ...] = ()) -> Client:
        client, tokens = Client(), tokenizer.encode(prompt)
        text = Text(Stream(tokenizer.create_stream(), pieces), stops)
        decoder.add(Sequence(client, tokens, len(tokens) + count, options, text))
        return client

    yield add
    decoder.close()


def counted(after: str, count: int) -> str:
    first = WORDS.index(after) + 1
    return "".join(f" {WORDS[at % len(WORDS)]}" for at in range(first, first + count))


def test_sequences_of_different_lengths_get_their_own_answers(begin: Begin) -> None:
    asked = [(" one two", 40), (" five", 3), (" nine ten eleven", 17), (" four", 1), (" one", 30), (" two three", 9)]
    clients = [begin(prompt, count) for prompt, count in asked]
    for (prompt, count), client in zip(asked, clients, strict=True):
        until(lambda client=client: client.reason == "length")  # type: ignore[misc]
        assert client.text == counted(prompt.split()[-1], count)


def test_slow_reader_delays_only_itself(begin: Begin) -> None:
    slow = begin(" one", 1500)
    until(lambda: len(slow.text) > 100)
    slow.slow = True
    quick = begin(" two", 500)
    until(lambda: quick.reason == "length")
    assert not slow.reason
    slow.slow = False
    until(lambda: slow.reason == "length")
    assert slow.text == counted("one", 1500)


def test_disconnect_frees_its_slot_in_the_batch(begin: Begin) -> None:
    long = [begin(" one", 1000), begin(" one", 1000)]  # for a third of this size there is no memory
    until(lambda: all(client.text for client in long))
    third = begin(" two", 1000)
    long[0].gone = True
    until(lambda: third.reason == "length")
    assert (long[0].reason, third.text) == ("cancelled", counted("two", 1000))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"vocab": {"▁a": 3, "<0xE6>": 4, "<unk>": 0, "é": 5}}, {3: b" a", 4: b"\xe6", 5: "é".encode(), 0: b"<unk>"}),
        ({"vocab": [["<unk>", 0.0], ["▁a", -1.5]]}, {1: b" a", 0: b"<unk>"}),
        ({}, {1: b"decoded"}),
    ],
)
def test_tokens_have_the_bytes_of_their_pieces(
    tmp_path: Path, model: dict[str, Any], expected: dict[int, bytes]
) -> None:
    class Library:
        def decode(self, tokens: list[int]) -> str:
            return "decoded"

    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": model, "decoder": {"type": "Sequence"}, "added_tokens": None}))
    pieces = Pieces(path, Library(), [])
    assert {token: pieces.bytes_of(token) for token in expected} == expected


def test_text_equals_that_of_the_hubs_tokenizer(folder: Path, model: Any) -> None:
    library, hub = og.Tokenizer(model), Tokenizer.from_file(str(folder / "tokenizer.json"))
    pieces, random = Pieces(folder / "tokenizer.json", library, [0]), Random(5)
    euro, word = hub.encode("\u20ac").ids, hub.encode(" one").ids
    made = [euro, euro[:2], [*euro[:2], *word], [*euro[1:], *euro, euro[0]], [euro[0], 0, *euro]]
    made += [random.choices(range(hub.get_vocab_size()), k=9) for _ in range(50)]
    for tokens in made:
        text = Text(Stream(library.create_stream(), pieces), ())
        assert "".join(text.add(token)[0] for token in tokens) + text.rest() == hub.decode(tokens)


def test_prompt_ending_with_the_padding_token_is_read_completely(begin: Begin) -> None:
    other, padded = begin(" one", 200), begin(" one two<pad>", 3)
    until(lambda: other.reason == "length" and padded.reason)
    assert (padded.text, padded.reason) == ("", "stop")  # after that token the model says its end
    assert other.text == counted("one", 200)


def test_sequence_beyond_the_cache_is_refused(begin: Begin) -> None:
    with pytest.raises(ValueError, match="make 2201 tokens, and there is memory for 2200"):
        begin(" one", 2200)


def test_row_padded_to_the_context_limit_moves_to_another_batch(begin: Begin) -> None:
    short, long = begin(" one", 600), begin(" one two" * 900, 200)
    until(lambda: short.reason == long.reason == "length")
    assert short.text == counted("one", 600)


def test_text_ends_before_a_stop_string() -> None:
    class Pieces:
        def decode(self, token: str) -> str:
            return token

        def rest(self) -> str:
            return ""

    text = Text(Pieces(), ("STOP", "end"))
    assert [text.add(piece) for piece in ("a S", "TO", "x e", "n", "d b")] == [
        ("a ", False),
        ("", False),
        ("STOx ", False),
        ("", False),
        ("", True),
    ]
    kept = Text(Pieces(), ("STOP",))
    assert (kept.add("ST"), kept.rest()) == (("", False), "ST")


def test_batches_are_joined_if_faster_than_prefilling_again() -> None:
    speed = Speed()
    assert not speed.pays_to_join([1, 1], 10, 2, 100)  # nothing is known yet
    speed.note_step(1, 0.010)
    speed.note_prompt(100, 0.1)
    assert speed.pays_to_join([1, 1], 50, 2, 100)
    assert not speed.pays_to_join([1, 1], 50, 2, 5)
    assert not speed.pays_to_join([8], 700, 4, 20)


# --- folders


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder": {"session_options": {"custom_ops_library": "x.so"}}}, "names code to load"),
        ({"decoder": {"filename": "../model.onnx"}}, "outside of its folder"),
        ({"vision": {"filename": "vision.onnx"}}, "takes more than text"),
        ({"context_length": 0}, "has no 'model' with"),
    ],
)
def test_folder_that_cannot_be_served_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_counter(tmp_path)
    file = tmp_path / "genai_config.json"
    settings = json.loads(file.read_text())
    settings["model"].update(change)
    file.write_text(json.dumps(settings))
    with pytest.raises(ModelLoadFailed, match=message):
        read_generation_folder(tmp_path, "counter")


def test_cache_bytes_per_token_are_read_from_the_folder(tmp_path: Path) -> None:
    folder = read_generation_folder(write_counter(tmp_path), "counter")
    assert folder.cache_bytes == 2 * 4 * 16  # keys and values of one layer with one head of 16 numbers


@pytest.mark.parametrize("is_older", [True, False])
def test_templates_get_every_named_token_of_the_folder(tmp_path: Path, is_older: bool) -> None:
    write_counter(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    tokens = {"mask_token": {"content": "<m>"}, "bos_token": "<old>", "extra_special_tokens": {"image_token": "<i>"}}
    settings = json.loads(file.read_text()) | tokens | {"add_bos_token": True}
    file.write_text(json.dumps(settings if is_older else settings | {"added_tokens_decoder": {}}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<map>"}}))
    found = read_generation_folder(tmp_path, "counter").templates
    assert [found[f"{name}_token"] for name in ("mask", "bos", "image")] == [
        "<m>",
        "<map>" if is_older else "<old>",
        "<i>",
    ]
    assert "add_bos_token" not in found


def test_completed_configuration_fits_the_model(tmp_path: Path) -> None:
    folder, backend = write_counter(tmp_path), GenaiBackend({})
    config = ModelConfig(name="counter", backend="genai")
    backend.complete(folder, config)
    assert validate_against_signature(config, backend.inspect(folder, config), "counter") == []


def test_limit_of_zero_is_refused() -> None:
    config = ModelConfig(name="counter", backend="genai")
    config.parameters["max_sequences"].string_value = "0"
    with pytest.raises(ConfigInvalid, match="'max_sequences' of model 'counter' is 0"):
        GenaiBackend({}).check(config)
