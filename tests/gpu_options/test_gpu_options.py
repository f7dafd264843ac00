"""Every option of sessions on GPUs, in every documented spelling, as the parsers of the images' GPU wheels read it.

`make gpu-wheels` brings the wheels. Neither a GPU nor CUDA is needed: stub_libraries.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from docker.lock import read_pins
from tests.gpu_options.parse import CPU, NO_DEVICE
from tests.gpu_options.stub_libraries import ERROR, make_stub_libraries
from tests.needed import missing, program
from tests.project import ROOT
from trident.core.backends.onnxruntime.providers import CUDA, TENSORRT, requested_providers
from trident.core.backends.onnxruntime.session import session_settings
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.schema import parse_model_config
from trident.core.cuda import OLD_DRIVER_CURE

WHEELS = ROOT / "build" / "gpu-wheels"
LOCKS = sorted(path.name for path in (ROOT / "docker").glob("requirements-gpu*.lock"))
BOOLEANS = ("1", "0", "true", "false", "True", "False")
# Of options that Triton reads itself.
WORDS = (*BOOLEANS, "on", "off")
_TENSORRT_BOOLEANS = """
int8_use_native_calibration_table trt_dla_enable trt_engine_cache_enable trt_dump_subgraphs
trt_force_sequential_engine_build trt_context_memory_sharing_enable trt_layer_norm_fp32_fallback
trt_timing_cache_enable trt_force_timing_cache trt_detailed_build_log trt_build_heuristics_enable
trt_sparsity_enable trt_dump_ep_context_model
"""
_CUDA_BOOLEANS = """
cudnn_conv_use_max_workspace cudnn_conv1d_pad_to_nc1d enable_skip_layer_norm_strict_mode tunable_op_enable
tunable_op_tuning_enable prefer_nhwc use_tf32 fuse_conv_bias
"""
# Booleans in Triton's spellings; other values as in the documents of Triton and ONNX Runtime.
TENSORRT_PARAMETERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_TENSORRT_BOOLEANS.split(), WORDS),
    "precision_mode": ("FP32", "FP16", "BF16", "INT8"),
    "max_workspace_size_bytes": ("1073741824",),
    "int8_calibration_table_name": ("calibration.flatbuffers",),
    "trt_max_partition_iterations": ("1000",),
    "trt_min_subgraph_size": ("1",),
    "trt_dla_core": ("0",),
    "trt_engine_cache_path": ("/tmp/engines",),
    "trt_engine_cache_prefix": ("model",),
    "trt_timing_cache_path": ("/tmp/timings",),
    "trt_builder_optimization_level": ("3",),
    "trt_auxiliary_streams": ("-1", "2"),
    "trt_tactic_sources": ("-CUDNN,+CUBLAS",),
    "trt_extra_plugin_lib_paths": ("/opt/plugins.so",),
    "trt_profile_min_shapes": ("x:1x1",),
    "trt_profile_max_shapes": ("x:8x1",),
    "trt_profile_opt_shapes": ("x:4x1",),
    "trt_ep_context_file_path": ("/tmp/context",),
    "trt_ep_context_embed_mode": ("0", "1"),
}
CUDA_PARAMETERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_CUDA_BOOLEANS.split(), BOOLEANS),
    "do_copy_in_default_stream": WORDS,
    "use_ep_level_unified_stream": WORDS,
    "gpu_mem_limit": ("2147483648",),
    "arena_extend_strategy": ("kNextPowerOfTwo", "kSameAsRequested"),
    "cudnn_conv_algo_search": ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
    "tunable_op_max_tuning_duration_ms": ("0",),
    "sdpa_kernel": ("0",),
}
# Deprecated parameters of a model, which Triton turns into options of the CUDA provider.
MODEL_PARAMETERS: dict[str, tuple[str, ...]] = {
    "gpu_mem_limit": ("2147483648",),
    "arena_extend_strategy": ("0", "1"),
    "cudnn_conv_algo_search": ("0", "1", "2"),
    "do_copy_in_default_stream": WORDS,
}
# Those that Triton turns into entries of the session and of its runs.
ENTRIES: dict[str, tuple[str, ...]] = {
    "session.use_device_allocator_for_initializers": ("0", "1"),
    "session.intra_op.allow_spinning": ("0", "1"),
    "session.intra_op.spin_duration_us": ("1000",),
    "memory.enable_memory_arena_shrinkage": ("cpu:0", "gpu:0", "cpu:0;gpu:1"),
}
PARAMETER = 'parameters { key: "%s" value { string_value: "%s" } }'


def accelerator(name: str) -> str:
    parameter = '{ key: "%s" value: "%s" }'
    given = f'gpu_execution_accelerator {{ name: "{name}" parameters {parameter} }}'
    return f"optimization {{ execution_accelerators {{ {given} }} }}"


# Of each kind: the provider, the parameters and their place in config.pbtxt.
KINDS = {
    "tensorrt": (TENSORRT, TENSORRT_PARAMETERS, accelerator("tensorrt")),
    "cuda": (CUDA, CUDA_PARAMETERS, accelerator("cuda")),
    "parameters": (CUDA, MODEL_PARAMETERS, PARAMETER),
    "entries": (CPU, ENTRIES, PARAMETER),
}
Case = tuple[str, dict[str, str], dict[str, str], dict[str, str]]


def case(text: str, provider: str) -> Case:
    """Arguments of parse.py for a GPU session that `text` configures and one of its providers."""
    config = parse_model_config(f'name: "m" backend: "onnxruntime" {text}', "config.pbtxt")
    requests = requested_providers(config, Placement("m_0", DeviceKind.GPU, 0))
    settings = session_settings(config, {})
    options = next(request.options for request in requests if request.name == provider)
    return provider, options, settings.session_entries, settings.run_entries


def pin(lock: str) -> str:
    lines = (ROOT / "docker" / lock).read_text().splitlines()
    return next(line.split()[0] for line in lines if line.startswith("onnxruntime-gpu=="))


@pytest.fixture(scope="module", params=LOCKS)
def parser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of a lock's wheel and of the libraries that stand in for NVIDIA's."""
    wheel = WHEELS / pin(request.param)
    if not wheel.is_dir():
        missing(f"{wheel.name} is not there: `make gpu-wheels` installs it")
    program("cc", "apt install gcc libc6-dev")
    program("readelf", "apt install binutils")
    stubs = tmp_path_factory.mktemp("stubs")
    capi = wheel / "onnxruntime" / "capi"
    make_stub_libraries([capi / f"libonnxruntime_providers_{name}.so" for name in ("cuda", "tensorrt")], stubs)
    return wheel, stubs


def refusals(parser: tuple[Path, Path], cases: list[Case]) -> list[str | None]:
    wheel, stubs = parser
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("parse.py"))],
        input=json.dumps(cases),
        env=os.environ | {"PYTHONPATH": str(wheel), "LD_LIBRARY_PATH": str(stubs)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=120,
    )
    answers: list[str | None] = json.loads(done.stdout)
    return answers


@pytest.mark.slow
def test_every_documented_spelling_is_accepted(parser: tuple[Path, Path]) -> None:
    written = [(kind, name, value) for kind in KINDS for name, values in KINDS[kind][1].items() for value in values]
    answers = refusals(parser, [case(KINDS[kind][2] % (name, value), KINDS[kind][0]) for kind, name, value in written])
    assert {each: answer for each, answer in zip(written, answers, strict=True) if answer} == {}


REFUSED: list[tuple[Case, str]] = [
    ((TENSORRT, {"trt_fp16_enable": "1"}, {}, {}), "should be 'True' or 'False'"),
    ((TENSORRT, {"trt_nonsense": "1"}, {}, {}), "Invalid TensorRT EP option: trt_nonsense"),
    ((CUDA, {"do_copy_in_default_stream": "maybe"}, {}, {}), "do_copy_in_default_stream"),
    ((CUDA, {"nonsense": "1"}, {}, {}), 'Unknown provider option: "nonsense"'),
    ((CPU, {}, {}, {"memory.enable_memory_arena_shrinkage": "gpu:first"}), "Unsupported device id"),
    ((CPU, {}, {}, {"gpu_graph_id": "first"}), "Failed to parse the cuda graph annotation id"),
]


@pytest.mark.slow
def test_parser_refuses_invalid_options(parser: tuple[Path, Path]) -> None:
    answers = refusals(parser, [refused for refused, _ in REFUSED])
    missing = [(answer, said) for answer, (_, said) in zip(answers, REFUSED, strict=True) if said not in (answer or "")]
    assert missing == []


# Run beside the wheel: a model is inspected, twice, on the GPU that its configuration asks for.
INSPECT = """
import sys
from pathlib import Path
from tests.unit import onnx_models
from tests.unit.backend_serving import config_of
from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend
from trident.core.errors import ServerError
version = onnx_models.write_version(onnx_models.add_sub(), Path(sys.argv[1]), "model")
backend = OnnxRuntimeBackend()
for _ in range(2):
    try:
        backend.inspect(version, config_of("instance_group { kind: KIND_GPU count: 1 gpus: 0 }"))
    except ServerError as error:
        print(type(error).__name__, error.message.split("CUDA failure ")[-1], error.hint)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (100, "ModelLoadFailed", "None"),
        (2, "OutOfMemory", "None"),
        (35, "ModelLoadFailed", OLD_DRIVER_CURE),
        (700, "DeviceLost", "None"),
    ],
)
def test_gpu_session_failure_is_recognized(
    parser: tuple[Path, Path], tmp_path: Path, error: int, kind: str, hint: str
) -> None:
    wheel, stubs = parser
    path = os.pathsep.join([str(wheel), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "LD_LIBRARY_PATH": str(stubs), ERROR: str(error)}
    done = subprocess.run(
        [sys.executable, "-c", INSPECT, str(tmp_path)],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(kind)]
    assert [line.split(" ; ")[0] for line in lines] == [f"{kind} {error}: {NO_DEVICE}"] * 2, done.stdout
    assert done.stdout.count(f" {hint}\n") == 2
    # Such as a warning for each session that CUDA is not a plug-in.
    assert done.stderr == ""


LOADED = """
import sys
from pathlib import Path
from trident.core.backends.onnxruntime.providers import TENSORRT, missing_library, preload_tensorrt
folder = Path(sys.argv[1])
print(missing_library(TENSORRT, folder))
preload_tensorrt()
print(missing_library(TENSORRT, folder))
"""


@pytest.mark.slow
def test_tensorrt_is_found_in_its_package(parser: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, stubs = parser
    for library in stubs.glob("*.so.*"):
        if library.suffix.lstrip(".").isdecimal():
            folder = tmp_path / ("tensorrt_libs" if library.name.startswith("libnv") else "cuda")
            folder.mkdir(exist_ok=True)
            shutil.copy(library, folder)
    paths = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "LD_LIBRARY_PATH": str(tmp_path / "cuda")}
    command = [sys.executable, "-c", LOADED, str(wheel / "onnxruntime" / "capi")]
    done = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True, check=True, timeout=60)
    before, after = done.stdout.splitlines()
    assert "libnvinfer.so" in before
    assert after == ""


def test_tensorrt_has_the_version_that_its_provider_links(parser: tuple[Path, Path]) -> None:
    [linked] = [path.suffix.removeprefix(".") for path in parser[1].glob("libnvinfer.so.[0-9]*[0-9]")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [wanted] = map(Requirement, project["optional-dependencies"]["tensorrt"])
    assert [wanted.specifier.contains(f"{int(linked) + more}.5") for more in (-1, 0, 1)] == [False, True, False]
    for lock in (ROOT / "docker" / "extras").glob("*-tensorrt.lock"):
        assert {version.partition(".")[0] for version in read_pins(lock).values()} == {linked}
