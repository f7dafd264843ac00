"""System calls of the server, the library and each command: no name is looked up, no address but loopback's is
connected to, and no file is written outside the folders that were named.

A program runs all of them in a network namespace of its own, and strace writes down what native code does as well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.servers.ports import free_ports
from tests.contract.servers.server import environment_without
from tests.contract.servers.session import TRIDENT
from tests.needed import program
from tests.project import ROOT
from trident.tools.commands import COMMANDS

MODEL = """
import numpy as np
import onnxruntime, openvino  # as models do that run graphs themselves
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(1, np.float32))]) for _ in requests]
"""
CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
"""
# Arguments: the ports of the server. The working directory has `models`.
PROGRAM = """
import fcntl, json, socket, struct, subprocess, sys, time, urllib.request
with socket.socket() as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo", 0x41))  # SIOCSIFFLAGS: up

trident, http, grpc, metrics = sys.argv[1:]
url = f"http://127.0.0.1:{http}"

# What they say of a machine, or of a short measurement, is not what is tested.
MAY_FAIL = ("doctor", "bench", "tune")

def run(*words, end=None):
    print("$ trident", *words, flush=True)
    process = subprocess.Popen([trident, *words])
    try:
        if end:
            end(process)
        status = process.wait()
    finally:
        process.kill()
    assert status == 0 or words[0] in MAY_FAIL and status == 1, (words, status)

X = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}]}
NUMBERS = [{"name": name, "datatype": "INT32", "shape": [1, 16], "data": [1] * 16} for name in ("INPUT0", "INPUT1")]

def infer(process):
    while True:
        try:
            urllib.request.urlopen(f"{url}/v2/health/ready").close()
            break
        except OSError:
            assert process.poll() is None
            time.sleep(0.1)
    for model, inputs in {"python": X["inputs"], "simple": NUMBERS, "vino": NUMBERS}.items():
        body = json.dumps({"inputs": inputs}).encode()
        urllib.request.urlopen(f"{url}/v2/models/{model}/infer", body).read()
    run("status", url)
    run("request", "simple", url)
    run("doctor", url, f"--metrics-port={metrics}")
    run("bench", "simple", f"--url={url}", "--measurement-interval=100", "--concurrency-range=1:1:1",
        "--output=bench")
    run("top", url, "--interval=1", "--count=2")
    process.terminate()

run("serve", "--model-repository=models", f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}",
    "--http-workers=2", "--trace-config=triton,file=traces", "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS",
    end=infer)
run("trace", "traces")
run("validate", "models")
run("doctor", "models", f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}")
run("openapi")
run("completion", "bash")
run("init", "ratio", "--repository=made")
run("import", "models/simple/1/model.onnx", "--name=imported", "--repository=made")
run("tune", "simple", "--repository=models", "--p99=1s", "--budget=5s", "--output=tuned")
run("emulate", "sagemaker", "--batch=input.json", "--output=out", "models/simple")

import trident as library
import onnxruntime, openvino
with library.Server("models") as server:
    server.model("simple").infer({each["name"]: __import__("numpy").ones((1, 16), "int32") for each in NUMBERS})
"""
CALLS = "connect,sendto,sendmsg,sendmmsg,open,openat,creat,mkdir,mkdirat,mknod,mknodat"
CALLS += ",rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory, in which everything ran; the lines of strace are in `traced`."""
    folder = tmp_path_factory.mktemp("quiet")
    for each in ("home", "temporary", "models/python/1"):
        (folder / each).mkdir(parents=True)
    shutil.copytree(ROOT / "deploy" / "models" / "simple", folder / "models" / "simple")
    shutil.copytree(ROOT / "deploy" / "models" / "simple" / "1", folder / "models" / "vino" / "1")
    (folder / "models/vino/config.pbtxt").write_text('backend: "openvino" default_model_filename: "model.onnx"')
    (folder / "models/python/1/model.py").write_text(MODEL)
    (folder / "models/python/config.pbtxt").write_text(CONFIG)
    numbers = '{"name": "%s", "datatype": "INT32", "shape": [1, 16], "data": [%s]}'
    inputs = ", ".join(numbers % (name, ", ".join(["1"] * 16)) for name in ("INPUT0", "INPUT1"))
    (folder / "input.json").write_text(f'{{"inputs": [{inputs}]}}')
    strace = program("strace", "apt install strace")
    unshare = [program("unshare", "apt install util-linux"), "--user", "--map-root-user", "--net"]
    for tried in (unshare, [strace, "-o", os.devnull]):
        if subprocess.run([*tried, "true"], capture_output=True).returncode:
            pytest.skip(f"{tried[0]} is not permitted here")
    seen = {
        # Whatever a user has set, such as for telemetry, would be no default.
        **environment_without("ORT_", "DO_NOT_TRACK", "MLFLOW_", "RAY_", "HF_", "TRIDENT_", "XDG_"),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "temporary"),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    trace = [strace, "-f", "-qq", "-y", "--seccomp-bpf", "-s", "4096", "-e", f"trace={CALLS}", "-e", "signal=none"]
    ports = map(str, free_ports(3))
    command = [*unshare, *trace, "-o", "traced", sys.executable, "-c", PROGRAM, TRIDENT, *ports]
    with (folder / "output").open("wb") as output:
        status = subprocess.run(command, stdout=output, stderr=output, cwd=folder, env=seen, timeout=300).returncode
    text = (folder / "output").read_text(errors="replace")
    assert status == 0, text
    assert {*re.findall(r"^\$ trident (\w+)", text, re.MULTILINE)} == {"serve", *COMMANDS}
    return folder


def test_only_loopback_is_contacted(folder: Path) -> None:
    addresses = re.compile(r'inet_(?:addr\("|pton\(AF_INET6, ")([^"]+)"')
    own = re.compile(r"127\.|::1$|::ffff:127\.|sin6?_port=htons\(53\)")
    seen = [
        line for line in (folder / "traced").read_text(errors="replace").splitlines() if "sa_family=AF_INET" in line
    ]
    assert seen, "the requests to the server itself are connections"
    others = [line for line in seen if "htons(53)" in line or not all(map(own.match, addresses.findall(line)))]
    assert others == []


def test_no_file_is_written_outside_the_named_folders(folder: Path) -> None:
    assert list((folder / "home").rglob("*")) == []
    written = set()
    opened = re.compile(r"\b(?:open|openat|creat)\(.*\b(?:O_WRONLY|O_RDWR|creat).* = \d+<(.+?)>$")
    changed = re.compile(r"\b(?:mk|re|li|sy|un|rm)\w+\((.*)\) = 0$")
    for line in (folder / "traced").read_text(errors="replace").splitlines():
        if found := opened.search(line):
            written.add(found[1])
        elif found := changed.search(line):
            written |= {os.path.join(folder, each) for each in re.findall(r'"([^"]*)"', found[1])}
    assert any(each.startswith(f"{folder}/made/") for each in written), "the imported model was written"
    named = (f"{folder}/", "/dev/", "/proc/", "/memfd:", "pipe:", "anon_inode:", "socket:")
    assert sorted(each for each in written if not each.startswith(named)) == []
