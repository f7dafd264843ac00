"""Embeddings of texts, beside infinity-emb, sentence-transformers under Flask, and the bare loop, from one ONNX file.

    python -m bench text --folder all-MiniLM-L6-v2 --others VENV

The other servers run in the environment VENV, because they need other versions of our packages: infinity-emb with the
extras server and optimum, sentence-transformers, flask and gunicorn. Each server is asked in turn while the others
idle, round after round; the ratios are those of the rounds. The bare loop is tokenizer, session and pooling in one
process: a bound for many connections, without JSON and sockets.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from bench.cases import SEED
from bench.clients import BUILD, target_of
from bench.results import Comparison, Figures, Program, Turn, names_among, positive
from bench.servers.server import JSON_HEADERS, Server, trident
from tests.contract.servers.ports import HOST
from tests.project import ROOT
from trident.app.terminal import counted
from trident.tools.bench.client import LoadClient
from trident.tools.bench.measure import level_of

FOLDER = BUILD / "text"
OURS, INFINITY, FLASK, BARE = "trident", "infinity-emb", "flask", "bare loop"
# The title, how many texts a request has, and the least and most words of a text.
CASES = {
    "one": ("one short text", 1, (5, 15)),
    "many": ("32 short texts", 32, (5, 15)),
    "mixed": ("one text of 5 to 200 words", 1, (5, 200)),
}
BODIES = 64
TOLERANCE = 1e-4
# Turns are longer where many long requests wait for each other.
STRETCH = {("many", 16): 2, ("many", 64): 5, ("mixed", 64): 2}
# At least so many times the others' requests/s; of the bare loop's, where requests are large.
AHEAD, OF_BARE = 1.0, 0.95


def requests_of(case: str, folder: Path) -> list[list[str]]:
    """The texts of each request; their words are one token each."""
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    words = sorted(word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2)
    random = np.random.default_rng(SEED)
    _, count, (least, most) = CASES[case]
    return [
        [" ".join(random.choice(words, random.integers(least, most + 1))) for _ in range(count)] for _ in range(BODIES)
    ]


def servers_of(options: argparse.Namespace) -> list[Server]:
    """The servers, not started. They read copies of the folder."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    folder = Path(shutil.copytree(options.folder, FOLDER / "models" / "model"))
    environment = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "HF_HOME": str(FOLDER / "cache"), "FOLDER": str(folder)}
    found = [trident(folder.parent, FOLDER / "trident.log", *options.options)]
    if options.others:
        # infinity-emb takes a local folder only if it finds more than one graph in it.
        twice = Path(shutil.copytree(folder, FOLDER / "twice"))
        shutil.copy(twice / "onnx" / "model.onnx", twice)
        infinity = f"{options.others}/bin/infinity_emb v2 --engine optimum --device cpu --pooling-method mean "
        infinity += f"--no-model-warmup --served-model-name model --model-id {twice} --host {HOST} --port {{http}}"
        flask = f"{options.others}/bin/python -m gunicorn --workers {os.cpu_count()} --threads 4 "
        flask += f"--bind {HOST}:{{http}} bench.servers.sentence_server:app"
        found += [
            Server(INFINITY, infinity.split(), FOLDER / "infinity.log", environment, ready_path="/health"),
            Server(FLASK, flask.split(), FOLDER / "flask.log", environment, ready_path="/"),
        ]
    return [server for server in found if server.name in options.servers]


def body_of(server: Server, texts: list[str]) -> tuple[str, bytes]:
    """The path, and the body as the server's users send it: OpenAI's client asks for base64."""
    if server.name == FLASK:
        return "/embed", json.dumps({"texts": texts}).encode()
    path = "/v1/embeddings" if server.name == OURS else "/embeddings"
    return path, json.dumps({"model": "model", "input": texts, "encoding_format": "base64"}).encode()


def vectors_in(answer: bytes) -> np.ndarray:
    document = json.loads(answer)
    if isinstance(document, list):
        return np.array(document, np.float32)
    return np.stack([np.frombuffer(base64.b64decode(each["embedding"]), np.float32) for each in document["data"]])


class Rounds:
    """Measures servers that are up."""

    def __init__(self, options: argparse.Namespace, servers: Sequence[Server], results: Figures) -> None:
        self.options = options
        self.servers = servers
        self.results = results

    def case(self, case: str) -> None:
        """All cells of a case, after its answers were compared."""
        requests = requests_of(case, self.options.folder)
        expected = None
        for server in self.servers:
            path, body = body_of(server, requests[0])
            vectors = vectors_in(server.ask("POST", path, body, JSON_HEADERS)[1])
            expected = vectors if expected is None else expected
            if not np.allclose(vectors, expected, atol=TOLERANCE):
                raise SystemExit(f"{server.name} and {self.servers[0].name} answer {case} differently")
        for connections in self.options.connections:
            self._cell(case, connections, requests)

    def _cell(self, case: str, connections: int, requests: list[list[str]]) -> None:
        title, count, _ = CASES[case]
        seconds = self.options.seconds * STRETCH.get((case, connections), 1)
        tails: dict[str, list[float]] = {}
        turns: list[dict[str, Turn]] = []
        errors = 0
        for number in range(self.options.rounds):
            turn: dict[str, Turn] = {}
            for server in self.servers[:: 1 if number % 2 == 0 else -1]:
                path, _ = body_of(server, [])
                bodies = [body_of(server, texts)[1] for texts in requests]
                target = target_of(server.url(path), bodies, JSON_HEADERS, connections=connections)
                before = server.cpu_seconds()
                with LoadClient(target) as client:
                    found = level_of(client.run(seconds, concurrency=connections), concurrency=connections)
                server.settle()
                cpu_us = (server.cpu_seconds() - before) / max(1, found.requests) * 1e6
                turn[server.name] = Turn(found.rate, cpu_us)
                tails.setdefault(server.name, []).append(found.p99)
                errors += found.errors
            if BARE in self.options.servers:
                turn[BARE] = bare_loop(self.options.folder, requests, self.options.seconds)
            turns.append({name: turn[name] for name in (OURS, INFINITY, FLASK, BARE) if name in turn})
        cell = f"{title}, {counted(connections, 'connection')}"
        comparison = Comparison(title, connections, turns, errors)
        self.results.comparisons.append(comparison)
        for cells in comparison.cells():
            print(" | ".join(cells), file=sys.stderr, flush=True)
        for name, values in tails.items():
            figure = self.results.note(cell, f"p99, {name}", "ms", values)
            print(f"    p99 {name}: {figure.median:.1f} ms", file=sys.stderr, flush=True)
        self._judge(cell, comparison, is_large=count > 1 and connections > 1)

    def _judge(self, cell: str, comparison: Comparison, is_large: bool) -> None:
        for other in (name for name in comparison.loads[1:] if comparison.loads[0] == OURS):
            if other == BARE and not is_large:
                continue
            goal = OF_BARE if other == BARE else AHEAD
            ratio = comparison.rate_ratio(OURS, other).median
            self.results.at_least(cell, f"requests/s over {other}'s", goal, ratio)
        self.results.at_most(cell, "errors", 0, comparison.errors)


def bare_loop(folder: Path, requests: list[list[str]], seconds: float) -> Turn:
    """A turn of the loop in a process of its own, which runs the texts of one request at a time."""
    texts = BUILD / "texts.json"
    texts.parent.mkdir(parents=True, exist_ok=True)
    texts.write_text(json.dumps(requests))
    command = [sys.executable, "-m", "bench.servers.text_loop", str(folder), str(texts), str(seconds)]
    answer = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=300).stdout)
    return Turn(answer["requests_per_second"], answer["cpu_us"])


def numbers(text: str) -> list[int]:
    return [positive(each) for each in text.split(",")]


def main(arguments: Sequence[str]) -> None:
    parser = Program("text", __doc__)
    names = (OURS, INFINITY, FLASK, BARE)
    parser.add_argument("--folder", type=Path, required=True, help="a sentence-transformers folder with its ONNX file")
    parser.add_argument(
        "--others", type=Path, help="the environment of the other servers; without it, they are left out"
    )
    parser.add_argument("--servers", type=names_among(names), default=list(names), help=", ".join(names))
    parser.add_argument("--only", type=names_among(tuple(CASES)), default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--connections", type=numbers, default="1,16,64", help="numbers, separated by commas")
    parser.add_argument("--rounds", type=positive, default=3, help="turns of each server in a cell")
    parser.add_argument("--seconds", type=positive, default=2, help="seconds of a turn; cells with queues take more")
    parser.add_argument("--options", type=shlex.split, default=[], help="options for our server, in one text")
    options, publication, results = parser.begin(arguments)
    with ExitStack() as stack:
        rounds = Rounds(options, [stack.enter_context(server) for server in servers_of(options)], results)
        for case in options.only:
            rounds.case(case)
    results.publish(publication, "-text")
