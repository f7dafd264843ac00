"""TorchScript modules made here, served, and compared with PyTorch's own answers."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.needed import package
from tests.unit.backend_serving import config_of, parameter, serving_version, spec_of, strings, tensor_text
from trident.core.backends.backend import LoadContext
from trident.core.backends.pytorch.backend import PyTorchBackend, check_controls
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.schema import ModelConfig
from trident.core.errors import (
    BackendFailed,
    ConfigInvalid,
    ModelLoadFailed,
    OutOfMemory,
    RepositoryUnavailable,
    ServerError,
)
from trident.core.inference.tensors import BY_NAME

if TYPE_CHECKING:
    import torch
else:
    torch = package("torch")

# The arguments of `forward`, and its body.
ADD_SUB = ("a, b", "return a + b, a - b")
SAME = ("x", "return x")
NUMBER = ("n: int", "return torch.ones([n])")


class Counter(torch.nn.Module):
    """Counts its calls in a buffer: state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * 0 + self.calls


def save(forward: tuple[str, str] | torch.nn.Module, version: Path) -> None:
    """A module, or one with this `forward`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if isinstance(forward, tuple):
            made = type("Module", (torch.jit.ScriptModule,), {})()
            made.define("def forward(self, {}):\n    {}\n".format(*forward))
        else:
            made = torch.jit.script(forward)
        made.save(str(version / "model.pt"))


def torch_config(
    inputs: dict[str, list[int]], outputs: dict[str, list[int]], datatype: str = "FP32", more: str = ""
) -> ModelConfig:
    text = "max_batch_size: 8\n" + more
    text += "".join(tensor_text("input", name, datatype, dims) for name, dims in inputs.items())
    text += "".join(tensor_text("output", name, datatype, dims) for name, dims in outputs.items())
    return config_of(text, backend="pytorch")


ONE = torch_config({"x": [-1]}, {"y": [-1]})


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        (["a", "b"], ["sum", "difference"]),
        (["b", "a"], ["sum", "difference"]),
        (["INPUT__0", "INPUT__1"], ["OUTPUT__0", "OUTPUT__1"]),
        (["INPUT__1", "INPUT__0"], ["OUTPUT__1", "OUTPUT__0"]),
        (["first", "second"], ["OUTPUT__1"]),
        # Mixed names mean the order of the configuration.
        (["first", "INPUT__0"], ["OUTPUT__1"]),
        (["INPUT__1", "second"], ["OUTPUT__1"]),
        # Digits must follow the first two underscores, and nothing must follow them.
        (["IN__x__1", "IN__0"], ["OUTPUT__1"]),
        (["IN__1a", "IN__0"], ["OUTPUT__1"]),
        (["__1", "__0"], ["OUTPUT__1"]),
    ],
)
def test_tensors_are_passed_by_name_or_index(version: Path, inputs: list[str], outputs: list[str]) -> None:
    save(ADD_SUB, version)
    config = torch_config({name: [4] for name in inputs}, {name: [4] for name in outputs})
    by_place = {"a": 0, "b": 1, "INPUT__0": 0, "INPUT__1": 1, "__0": 0, "__1": 1}
    if not by_place.keys() >= set(inputs):
        by_place = {name: place for place, name in enumerate(inputs)}
    by_result = {"sum": 0, "difference": 1, "OUTPUT__0": 0, "OUTPUT__1": 1}
    with serving_version(PyTorchBackend({}), version, config, threads=1) as served:
        sizes = (1, 3, 2)
        given = [(np.full((n, 4), 5 + n, np.float32), np.full((n, 4), n, np.float32)) for n in sizes]
        requests = [served.request({name: pair[by_place[name]] for name in inputs}) for pair in given]
        answers = served.execute(requests)
    for pair, answer in zip(given, answers, strict=True):
        results = (pair[0] + pair[1], pair[0] - pair[1])
        assert list(answer) == outputs
        for name in outputs:
            np.testing.assert_array_equal(answer[name], results[by_result[name]])


def test_answer_is_not_overwritten_by_the_next_batch(version: Path) -> None:
    save(SAME, version)
    with serving_version(PyTorchBackend({}), version, ONE) as served:
        # Two requests are gathered into memory that the next batch uses again.
        ones, twos = (np.full((1, 50_000), value, np.float32) for value in (1, 2))
        first = served.execute([served.request({"x": ones})] * 2)
        second = served.execute([served.request({"x": twos})] * 2)
    assert all((answer["y"] == 1).all() for answer in first)
    assert all((answer["y"] == 2).all() for answer in second)


def test_module_that_modifies_its_input_does_not_modify_the_request(version: Path) -> None:
    save(("x", "return x.mul_(2)"), version)
    values = np.ones((1, 4), np.float32)
    with serving_version(PyTorchBackend({}), version, ONE) as served:
        answer = served.infer({"x": values})["y"]
    assert (answer == 2).all()
    assert (values == 1).all()


@pytest.mark.parametrize(("sharing", "calls"), [("false", [1, 2, 1]), ("true", [1, 2, 3])])
def test_each_instance_has_its_own_module_unless_they_share(version: Path, sharing: str, calls: list[int]) -> None:
    save(Counter(), version)
    config = torch_config({"x": [1]}, {"y": [1]}, more=parameter("ENABLE_WEIGHT_SHARING", sharing))
    placements = tuple(Placement(f"model_{n}", DeviceKind.CPU) for n in range(2))
    model = PyTorchBackend({}).load(LoadContext(version, config, spec_of(config), placements))
    first, second = (model.instance(placement) for placement in placements)
    try:
        with serving_version(PyTorchBackend({}), version, config) as served:
            request = served.request({"x": np.ones((1, 1), np.float32)})
            found = []
            for instance in (first, first, second):
                (outputs,) = instance.execute([request], [1]).outputs
                assert not isinstance(outputs, Exception)
                found.append(int(outputs[0].array[0, 0]))
    finally:
        first.close()
        second.close()
        model.close()
    assert found == calls


def test_dictionary_has_the_names_of_the_configuration(version: Path) -> None:
    save(("tensors: Dict[str, Tensor]", "return tensors['first'] - tensors['second']"), version)
    with serving_version(
        PyTorchBackend({}), version, torch_config({"second": [1], "first": [1]}, {"y": [1]})
    ) as served:
        three, one = np.full((1, 1), 3, np.float32), np.ones((1, 1), np.float32)
        assert served.infer({"first": three, "second": one})["y"] == [[2]]


def test_strings_are_lists(version: Path) -> None:
    save(("words: List[str]", "return [word + '!' for word in words]"), version)
    more = "reshape { shape: [ ] }"
    text = "max_batch_size: 8\n" + tensor_text("input", "IN__0", "BYTES", [1], more)
    config = config_of(text + tensor_text("output", "OUT__0", "BYTES", [1], more), backend="pytorch")
    with serving_version(PyTorchBackend({}), version, config) as served:
        words = [strings(b"a\0b", shape=(1, 1)), strings("é".encode(), b"c", shape=(2, 1))]
        # The request validation has removed the dimension, as `reshape` says.
        answers = served.execute([served.request({"IN__0": word}) for word in words])
    assert answers[0]["OUT__0"].tolist() == [[b"a\0b!"]]
    assert answers[1]["OUT__0"].tolist() == [["é!".encode()], [b"c!"]]


def answering(datatype: str) -> ModelConfig:
    config = torch_config({"x": [-1]}, {"y": [-1]})
    config.output[0].data_type = BY_NAME[datatype].config_number
    return config


@pytest.mark.parametrize(
    ("forward", "config", "error", "text"),
    [
        (
            ("x", "assert bool((x < 100).all()), 'a value is too large'\n    return x"),
            ONE,
            BackendFailed,
            "PyTorch execute failure: ",
        ),
        (("x", "return torch.zeros([1 << 50])"), ONE, OutOfMemory, "PyTorch execute failure: "),
        (("x", "return x.sum()"), ONE, BackendFailed, "output 'y' is a scalar which is not supported."),
        (("x", "return {'x': x}"), ONE, BackendFailed, "output must be of type Tensor, List[str] or Tuple containing"),
        (SAME, torch_config({"x": [-1]}, {"OUT__1": [-1]}), BackendFailed, "refers to an output index which doesn't"),
        (SAME, answering("BYTES"), BackendFailed, "1 dimensional List of String as output for 'y' for model 'model'"),
        (SAME, answering("INT8"), BackendFailed, "datatype TYPE_INT8 for output 'y', model provides TYPE_FP32"),
        (SAME, torch_config({"x": [1], "z": [1]}, {"y": [1]}), ConfigInvalid, "expects 2 inputs, model provides 1"),
        (NUMBER, ONE, BackendFailed, "An input of type 'int' was detected in the model."),
        (("x: Optional[Tensor]", "return x"), ONE, BackendFailed, "An input of type 'Optional[Tensor]' was detected"),
        (
            ("x, d: Dict[str, Tensor]", "return x"),
            torch_config({"x": [1], "d": [1]}, {"y": [1]}),
            BackendFailed,
            "Multiple inputs of kind DictType were detected.",
        ),
        (SAME, torch_config({"x": [1]}, {"y": [1]}, "UINT16"), BackendFailed, "unsupported datatype TYPE_UINT16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mismatches_have_tritons_text(
    version: Path, forward: tuple[str, str], config: ModelConfig, error: type[ServerError], text: str
) -> None:
    save(forward, version)
    with pytest.raises(error) as raised, serving_version(PyTorchBackend({}), version, config) as served:
        served.infer({name: np.full((1, 2), 200, np.float32) for name in served.spec.inputs})
    assert text in raised.value.message


def written_file(version: Path, kind: str) -> None:
    path = version / "model.pt"
    if kind == "pickle":
        torch.save({"weight": torch.ones(1)}, path)
    elif kind == "old pickle":
        torch.save({"weight": torch.ones(1)}, path, _use_new_zipfile_serialization=False)
    elif kind == "cut":
        save(ADD_SUB, version)
        path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("kind", "error", "text", "hint"),
    [
        ("pickle", ModelLoadFailed, "is a pickle that torch.save has written", "torch.jit.script"),
        ("old pickle", ModelLoadFailed, "is not a TorchScript archive", "is a pickle"),
        ("cut", ModelLoadFailed, "is not a TorchScript archive", "the archive is incomplete"),
        ("missing", RepositoryUnavailable, "unable to find", "expected model/1/model.pt"),
    ],
)
def test_invalid_archive_fails_the_load(
    version: Path, kind: str, error: type[ServerError], text: str, hint: str
) -> None:
    written_file(version, kind)
    with pytest.raises(error) as raised, serving_version(PyTorchBackend({}), version, ONE):
        pass
    assert text in raised.value.message
    assert hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    "more",
    [
        parameter("DISABLE_OPTIMIZED_EXECUTION", "true"),
        parameter("INFERENCE_MODE", "false"),
        parameter("INTRA_OP_THREAD_COUNT", "1") + parameter("INTER_OP_THREAD_COUNT", "1"),
    ],
)
def test_parameters_that_change_the_execution_are_accepted(version: Path, more: str) -> None:
    save(ADD_SUB, version)
    config = torch_config({"a": [2], "b": [2]}, {"y": [2]}, more=more)
    ones: Any = np.ones((1, 2), np.float32)
    with serving_version(PyTorchBackend({}), version, config) as served:
        assert (served.infer({"a": ones, "b": ones})["y"] == 2).all()


def changed(version: Path, ending: str, old: bytes, new: bytes) -> None:
    """Replace `old` in the entry of the archive whose name ends with `ending`."""
    path = version / "model.pt"
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content.replace(old, new) if name.endswith(ending) else content)


@pytest.mark.parametrize(
    ("ending", "old", "new", "text", "hint"),
    [
        (".py", b"torch.relu", b"ops.mine.relu", "mine", "operators of a library that is not installed here"),
        ("/version", b"3", b"99", "version 99", f"made by a newer PyTorch than the installed {torch.__version__}"),
    ],
)
def test_newer_archives_and_unknown_operators_are_named(
    version: Path, ending: str, old: bytes, new: bytes, text: str, hint: str
) -> None:
    save(("x", "return torch.relu(x)"), version)
    changed(version, ending, old, new)
    with pytest.raises(ModelLoadFailed) as raised, serving_version(PyTorchBackend({}), version, ONE):
        pass
    assert text in raised.value.message
    assert hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("said", "found", "is_lost"),
    [
        ("CUDA error: device-side assert triggered", "CUDA error: device-side assert triggered", True),
        ("CUDA error: device-side assert triggered", None, False),  # the text of a client
        ("CUDA error: an illegal memory access was encountered", "CUDA error: out of memory", False),
        ("index out of range in self", "CUDA error: device-side assert triggered", False),
    ],
)
def test_lost_gpu_is_detected_by_a_second_failure(
    monkeypatch: pytest.MonkeyPatch, said: str, found: str | None, is_lost: bool
) -> None:
    def synchronize(device_id: int) -> None:
        if found is not None:
            raise RuntimeError(found)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert package("trident.core.backends.pytorch.script_model").is_poison(RuntimeError(said)) is is_lost


def test_inspection_loads_the_module_and_compares_its_arguments(version: Path) -> None:
    save(ADD_SUB, version)
    PyTorchBackend({}).inspect(version, torch_config({"a": [1], "b": [1]}, {"y": [1]}))
    with pytest.raises(ConfigInvalid, match="configuration expects 1 inputs, model provides 2"):
        PyTorchBackend({}).inspect(version, torch_config({"a": [1]}, {"y": [1]}))


@pytest.mark.parametrize(
    ("batching", "text"),
    [
        ("control_input { name: 'START' }", "input 'START' does not follow <name>__<index> naming convention."),
        ("state { input_name: 'IN' output_name: 'OUT__1' }", "state 'IN' does not follow the <name>__<index> naming"),
        ("state { input_name: 'IN__1' output_name: 'OUT' }", "state 'OUT' does not follow the <name>__<index> naming"),
        (
            "state { input_name: 'IN__1' output_name: 'OUT__1' } } input { name: 'A' ",
            "not all inputs and outputs follow",
        ),
    ],
)
def test_controls_and_states_need_an_index(batching: str, text: str) -> None:
    config = config_of(
        f"input {{ name: 'A__0' }} output {{ name: 'B__0' }} sequence_batching {{ {batching} }}", backend="pytorch"
    )
    with pytest.raises(BackendFailed) as raised:
        check_controls(config)
    assert text in raised.value.message
