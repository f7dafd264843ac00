"""Generated tokens a second, beside the library's own loop on the same folder.

    python -m bench generation                about 2 minutes
    python -m bench generation --rounds 30

A decoder of 6 layers of size 256 goes on with a short prompt, greedily, on all cores or on a GPU. `loop` is ONNX
Runtime GenAI's Generator, whose batch has all streams from the start; `Engine` is the library's interface for
requests, which takes four at a time. The server has the same requests from as many clients, each with a stream of
events. They take turns.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import onnxruntime_genai as og

from bench.clients import BUILD
from bench.results import Program, Ratio, positive
from bench.servers.server import Server, trident
from tests.contract.servers.ports import HOST
from tests.genai_folders import word_ids, write_model, write_tokenizer
from trident.app.terminal import counted
from trident.tools.bench.client import http_request

FOLDER = BUILD / "generation"
MODEL, LAYERS, SIZE, VOCABULARY, CONTEXT = "decoder", 6, 256, 8000, 512
PROMPT = " one two three four"
STREAMS = (1, 8)
LIBRARY = ("loop", "Engine")
GOAL = 0.95
END = b"0\r\n\r\n"


def build(models: Path, *, gpu: bool) -> None:
    """Write the repository. The head prefers whole words, so that each token has a text, and none ends it."""
    folder = models / MODEL
    shutil.rmtree(folder, ignore_errors=True)
    words = word_ids(write_tokenizer(folder))
    random = np.random.default_rng(5)
    head = np.zeros((SIZE, VOCABULARY), np.float32)
    head[:, words] = random.normal(size=(SIZE, len(words)))
    table = random.normal(size=(VOCABULARY, SIZE)).astype(np.float32)
    write_model(folder, {"table": table, "head": head}, context=CONTEXT, layers=LAYERS, gpu=gpu)


class Library:
    """The library in a process of its own, which this module runs as a program."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", __name__, str(FOLDER / "models" / MODEL)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def rate(self, way: str, streams: int, tokens: int) -> float:
        """Tokens/s of one turn."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(way, streams, tokens, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def run_library(folder: str) -> None:
    """Answer each line of the standard input, a way, a number of streams and one of tokens, with tokens/s."""
    if og.is_cuda_available():
        onnxruntime.preload_dlls()
    model = og.Model(folder)
    prompt = og.Tokenizer(model).encode(PROMPT)
    engine = og.Engine(model)
    for line in sys.stdin:
        way, streams, tokens = line.split()
        run = run_loop if way == "loop" else run_engine
        began = time.perf_counter()
        run(model, engine, prompt, int(streams), int(tokens))
        print(int(streams) * int(tokens) / (time.perf_counter() - began), flush=True)


def run_loop(model: Any, engine: Any, prompt: Any, streams: int, tokens: int) -> None:
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=len(prompt) + tokens, batch_size=streams)
    generator = og.Generator(model, parameters)
    generator.append_tokens(np.tile(prompt, (streams, 1)) if streams > 1 else prompt)
    while not generator.is_done():
        generator.generate_next_token()
        generator.get_next_tokens()


def run_engine(model: Any, engine: Any, prompt: Any, streams: int, tokens: int) -> None:
    requests = [engine.create_request() for _ in range(streams)]
    for request in requests:
        options = og.TurnOptions(request)
        options.set_max_generated_tokens(tokens)
        request.begin_turn(prompt, options)
    events = engine.create_event_buffer(4 * streams)
    while engine.has_pending_requests():
        engine.run(events)
    for request in requests:
        request.close()


def run_server(server: Server, pool: ThreadPoolExecutor, streams: int, tokens: int) -> float:
    """Tokens/s of as many clients at once."""
    began = time.perf_counter()
    counts = list(pool.map(lambda _: stream(server, tokens), range(streams)))
    if counts != [tokens] * streams:
        raise RuntimeError(f"{counts} tokens came, not {tokens} for each; the log is {server.log}")
    return streams * tokens / (time.perf_counter() - began)


def stream(server: Server, tokens: int) -> int:
    """Read one stream of events to its end. Returns the tokens that its last one counts."""
    body = json.dumps({"text_input": PROMPT, "max_tokens": tokens, "temperature": 0, "stream": True}).encode()
    request = http_request("POST", f"/v2/models/{MODEL}/generate_stream", {"Host": HOST}, body)
    with socket.create_connection((HOST, server.ports["http"])) as connection:
        connection.sendall(request)
        received = b""
        while not received.endswith(END):
            if not (more := connection.recv(1 << 16)):
                raise RuntimeError(f"the server closed the connection; its log is {server.log}")
            received = received[-4096:] + more
    last = received.rpartition(b"data: ")[2].partition(b"\n")[0]
    return int(json.loads(last)["num_output_tokens"])


def main(arguments: Sequence[str]) -> None:
    parser = Program("generation", __doc__)
    parser.add_argument("--rounds", type=positive, default=15, help="turns of each; ratios are those of a round")
    parser.add_argument("--tokens", type=positive, default=400, help="of each stream")
    options, publication, figures = parser.begin(arguments)
    build(FOLDER / "models", gpu=og.is_cuda_available())
    library = Library()
    server = trident(FOLDER / "models", FOLDER / "server.log")
    with server, ThreadPoolExecutor(max(STREAMS)) as pool:
        for streams in STREAMS:
            rates: dict[str, list[float]] = {name: [] for name in ("server", *LIBRARY)}
            for turn in range(options.rounds + 1):
                for name in list(rates)[:: 1 if turn % 2 == 0 else -1]:
                    if name == "server":
                        rate = run_server(server, pool, streams, options.tokens)
                    else:
                        rate = library.rate(name, streams, options.tokens)
                    if turn:  # the first one warms up
                        rates[name].append(rate)
            case = counted(streams, "stream")
            for name, values in rates.items():
                figures.note(case, name, "tokens/s", values)
            for name in LIBRARY:
                ratio = Ratio.of(rates["server"], rates[name])
                figures.at_least(case, f"server over {name}: {ratio}", GOAL, ratio.median)
    library.close()
    figures.publish(publication, "-generation")


if __name__ == "__main__":
    run_library(sys.argv[1])
