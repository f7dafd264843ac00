"""What a server with an ONNX model and a load client import, for a process from which they are forked."""

# ruff: noqa: F401

import numpy.random

import trident.app.bench.client
import trident.app.cli
import trident.app.commands.serve
import trident.app.sites.engine_start
import trident.app.sites.in_process
import trident.app.worker.worker
import trident.core.backends.in_process
import trident.core.backends.onnxruntime.backend
import trident.core.backends.onnxruntime.runs
