"""Plugins of ONNX Runtime: the device of a configuration, and refusals.

tests/contract/frameworks/test_plugins.py runs a real one.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf import text_format

from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend, device_support
from trident.core.backends.onnxruntime.providers import CPU, ProviderRequest, requested_providers
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, ModelLoadFailed


def device(kind: str, number: int = 0) -> SimpleNamespace:
    """As ONNX Runtime has them."""
    hardware = SimpleNamespace(type=SimpleNamespace(name=kind), vendor=f"maker {number}")
    return SimpleNamespace(ep_name="FastProvider", ep_metadata={"version": "1.2"}, device=hardware)


NPU, PROCESSOR, FIRST, SECOND = device("NPU"), device("CPU"), device("GPU", 1), device("GPU", 2)
PLUGINS = {"fast": [NPU, FIRST, PROCESSOR, SECOND], "npu": [NPU], "none": []}
ON_CPU, ON_GPU = Placement("m_0", DeviceKind.CPU), Placement("m_0", DeviceKind.GPU, 1)


def config(*names: str, kind: str = "cpu", parameters: str = "") -> ModelConfig:
    texts = [f'{kind}_execution_accelerator {{ name: "{name}" {parameters} }}' for name in names]
    text = f'name: "m" optimization {{ execution_accelerators {{ {" ".join(texts)} }} }}'
    return text_format.Parse(text, ModelConfig())


@pytest.mark.parametrize(
    ("name", "kind", "placement", "expected"),
    [
        ("fast", "cpu", ON_CPU, PROCESSOR),
        ("npu", "cpu", ON_CPU, NPU),
        ("fast", "gpu", ON_GPU, SECOND),
    ],
)
def test_a_plugin_runs_on_its_device_of_the_instance(
    name: str, kind: str, placement: Placement, expected: object
) -> None:
    parameters = 'parameters { key: "precision" value: "low" }'
    plugged, cpu = requested_providers(config(f"plugin:{name}", kind=kind, parameters=parameters), placement, PLUGINS)
    assert plugged.device is expected
    assert (plugged.name, plugged.options) == ("FastProvider", {"precision": "low"})
    assert cpu == ProviderRequest(CPU, {})


def test_cpu_plugin_is_not_used_by_gpu_instances() -> None:
    requests = requested_providers(config("plugin:fast"), ON_GPU, PLUGINS)
    assert [each.device for each in requests] == [None, None]


@pytest.mark.parametrize(
    ("given", "placement", "kind", "text"),
    [
        (config("plugin:other"), ON_CPU, ConfigInvalid, "the server has no plugin 'other'; it has fast, npu, none"),
        (config("plugin:fast", "openvino"), ON_CPU, ConfigInvalid, "a plugin stands alone, and these are requested"),
        (config("plugin:none"), ON_CPU, ModelLoadFailed, "'none' has no device for cpu: no device on this machine"),
        (
            config("plugin:npu", kind="gpu"),
            ON_GPU,
            ModelLoadFailed,
            "no device for gpu:1: FastProvider 1.2 on NPU (maker 0)",
        ),
    ],
)
def test_unsupported_use_of_a_plugin_is_refused(
    given: ModelConfig, placement: Placement, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as refused:
        requested_providers(given, placement, PLUGINS)
    assert text in str(refused.value)


def test_invalid_plugin_library_is_named_and_not_registered(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"no library")
    settings = {"plugin=broken": str(library), "default-max-batch-size": "4"}
    for _ in range(2):
        with pytest.raises(ModelLoadFailed, match=rf"cannot load its plugin 'broken': .*{library}"):
            OnnxRuntimeBackend(settings)
    state = device_support(settings).providers[-1]
    assert (state.name, state.installed) == ("plugin:broken", True)
    assert str(library) in state.problem
    with pytest.raises(ConfigInvalid, match=r"given as plugin=NAME=PATH, not as plugin=/a\.so"):
        OnnxRuntimeBackend({"plugin": "/a.so"})
