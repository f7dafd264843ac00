"""The model repositories of the benchmarks, built into folders that are not committed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from bench.cases import DIGIT
from bench.models import networks
from bench.models.networks import CLASSES, graph_of, identity
from tests.project import ROOT

SHIPPED = ROOT / "deploy" / "models"
CONFIG = """\
backend: "onnxruntime"
max_batch_size: {batch}
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ {dims_in} ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ {dims_out} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{batching}
"""
BATCHING = "dynamic_batching { }"
WAITING = "dynamic_batching {{ max_queue_delay_microseconds: {} }}"
# As Triton served it: bench/results/*-beside-triton.md.
CNN_DELAY_US = 500
IMAGE_DIMS = "3, 224, 224"
CACHED, SEQUENCES = "simple_cached", "simple_sequences"
TABULAR, FEATURES = "tabular", 30
OPEN_SEQUENCES, IDLE_US = 10_000, 3_600_000_000


def write(folder: Path, config: str, model: onnx.ModelProto | None) -> None:
    """Write one model; without `model`, keep the existing graph."""
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(config)
    if model is not None:
        onnx.save(model, folder / "1" / "model.onnx")


def build(repository: Path) -> None:
    """Write the models of all cases except (e) under `repository`."""
    for name in ("simple", "digits"):
        shutil.copytree(SHIPPED / name, repository / name, dirs_exist_ok=True)
    build_echo(repository)
    config = CONFIG.format(batch=8, dims_in=IMAGE_DIMS, dims_out=IMAGE_DIMS, batching="")
    write(repository / "image_echo", config, identity([3, 224, 224]))
    config = CONFIG.format(batch=8, dims_in=IMAGE_DIMS, dims_out="1", batching="")
    write(repository / "image_mean", config, networks.mean())
    build_cnn(repository / "digits_cnn", batching=WAITING.format(CNN_DELAY_US))


def build_echo(repository: Path) -> None:
    """Write `identity`. Without a batcher, a request goes to the session unchanged: case (b) measures copies."""
    write(repository / "identity", CONFIG.format(batch=64, dims_in="-1", dims_out="-1", batching=""), identity(["D"]))


def build_cnn(
    folder: Path, *, batching: str, batch: int = 32, channels: tuple[int, int] = networks.CNN_CHANNELS
) -> None:
    image = ", ".join(map(str, DIGIT))
    config = CONFIG.format(batch=batch, dims_in=image, dims_out=CLASSES, batching=batching)
    write(folder, config, networks.digits_cnn(channels))


def build_cached(repository: Path) -> None:
    """Add/sub whose responses are cached."""
    shutil.copytree(SHIPPED / "simple", repository / CACHED, dirs_exist_ok=True)
    path = repository / CACHED / "config.pbtxt"
    path.write_text(
        path.read_text().replace('"simple"', f'"{CACHED}"').replace(BATCHING, "response_cache { enable: true }\n")
    )


def build_ensemble(repository: Path) -> None:
    """`first` and `second` are add/sub of 16 integers; `ensemble` runs one after the other."""
    for name in ("first", "second"):
        write(repository / name, "max_batch_size: 64\n", onnx.load(SHIPPED / "simple" / "1" / "model.onnx"))
    between = {"0": "sum", "1": "difference"}
    steps = [
        ("first", {f"INPUT{n}": f"INPUT{n}" for n in between}, {f"OUTPUT{n}": name for n, name in between.items()}),
        ("second", {f"INPUT{n}": name for n, name in between.items()}, {f"OUTPUT{n}": f"OUTPUT{n}" for n in between}),
    ]
    text = ""
    for model, inputs, outputs in steps:
        maps = [
            f'{field} {{ key: "{name}" value: "{tensor}" }}'
            for field, pairs in (("input_map", inputs), ("output_map", outputs))
            for name, tensor in pairs.items()
        ]
        text += f'step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }} '
    tensors = " ".join(
        f'{side} {{ name: "{side.upper()}{n}" data_type: TYPE_INT32 dims: [ 16 ] }}'
        for side in ("input", "output")
        for n in between
    )
    config = f'platform: "ensemble" max_batch_size: 64 {tensors} ensemble_scheduling {{ {text} }}'
    write(repository / "ensemble", config, None)


def build_sequences(repository: Path) -> None:
    """Add/sub with `sequence_batching` and no controls, so that its requests differ only in their sequences."""
    strategy = f"max_sequence_idle_microseconds: {IDLE_US} oldest {{ max_candidate_sequences: {OPEN_SEQUENCES} }}"
    config = f"max_batch_size: 64 sequence_batching {{ {strategy} }} instance_group {{ count: 1 kind: KIND_CPU }}"
    write(repository / SEQUENCES, config, onnx.load(SHIPPED / "simple" / "1" / "model.onnx"))


def build_tabular(repository: Path) -> None:
    """Write a model that adds up the features of a row."""
    node = helper.make_node("MatMul", ["IN", "W"], ["OUT"])
    graph = graph_of([node], [FEATURES], [1], {"W": np.ones((FEATURES, 1))}, names=("IN", "OUT"))
    write(repository / TABULAR, 'backend: "onnxruntime"\nmax_batch_size: 1024\ndynamic_batching {}\n', graph)
