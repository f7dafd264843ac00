"""The layout of a repository: models, versions, labels, configuration files, and likely mistakes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from google.protobuf import text_format

from trident.core.backends.registry import BackendRegistry
from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, ErrorCode, ModelLoadFailed, ServerError, Unsupported
from trident.core.repository.check import check_model, warnings_of
from trident.core.repository.config import check_config, read_config
from trident.core.repository.content_digest import ContentDigest
from trident.core.repository.layout_hints import layout_hint, no_models_hint, unread_configuration
from trident.core.repository.repository import (
    ModelDirectory,
    available_versions,
    read_labels,
    select_versions,
    version_directories,
    version_number,
    version_path,
)


def test_numbered_directories_are_versions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("10", "2", "0", "003", "abc", "3_old", "-1", "٣", "9" * 30, "warmup", "initial_state", "configs"):
        (tmp_path / name).mkdir()
    (tmp_path / "7").touch()
    directory = ModelDirectory("m", tmp_path)
    assert version_directories(directory) == [0, 2, 10]
    assert version_path(directory, 10) == tmp_path / "10"
    assert [version_number(name) for name in ("0", "10", "003", "٣")] == [0, 10, None, None]
    leading = "ignore version directory '003' which contains leading zeros in its directory name"
    assert leading in caplog.messages
    skipped = [message for message in caplog.messages if message.endswith("which fails to convert to integral number")]
    assert len(skipped) == 5
    assert "ignore version directory 'abc' which fails to convert to integral number" in skipped


def test_a_missing_version_is_logged_and_an_empty_selection_refused(caplog: pytest.LogCaptureFixture) -> None:
    config = text_format.Parse("version_policy { specific { versions: [ 1, 4 ] } }", ModelConfig())
    assert select_versions(config, [1], "m") == [1]
    assert caplog.messages == ["version 4 is specified for model 'm', but the version directory is not present"]
    with pytest.raises(ConfigInvalid) as caught:
        select_versions(ModelConfig(), [], "m")
    assert caught.value.message == "at least one version must be available under the version policy of model 'm'"


def labels(directory: Path, file_name: str) -> dict[str, tuple[str, ...]]:
    text = f'output {{ name: "OUT" label_filename: "{file_name}" }} output {{ name: "PLAIN" }}'
    return read_labels(ModelDirectory("m", directory), text_format.Parse(text, ModelConfig()))


def test_file_outside_the_model_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported) as caught:
        labels(tmp_path, "../labels.txt")
    assert caught.value.message == (
        "label file path '../labels.txt' for output 'OUT' in model 'm' is outside model directory"
    )
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_invalid_label_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "loop").symlink_to("loop")
    reasons = {
        "pipe": "it is not a regular file",
        "huge": "it has 1099511627776 bytes, and may have 67108864",
        "loop": "Too many levels of symbolic links",
        ".": "Is a directory",
    }
    for name, reason in reasons.items():
        with pytest.raises(ModelLoadFailed) as caught:
            labels(tmp_path, name)
        assert caught.value.message == f"failed to open text file for read {tmp_path / name}: {reason}"


ANY = (
    "expected one of model.savedmodel, model.graphdef, model.plan, model.onnx, model.xml, model.pt, model.pt2, "
    "model.py, genai_config.json"
)


MAKE = "expected iris/1/model.onnx: make the folder iris/1 for the files of version 1"


def laid_out(root: Path, *files: str, config: str = "") -> ModelDirectory:
    """A model directory with these files; a name that ends with a slash is a folder."""
    for name in files:
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(b"?")
    root.mkdir(exist_ok=True)
    if config:
        (root / "config.pbtxt").write_text(config)
    return ModelDirectory(root.name, root)


def hint_of_load(directory: ModelDirectory) -> str:
    """The hint with which a server refuses the model before it looks at a version's file."""
    config = read_config(directory)
    try:
        check_config(directory, config, BackendRegistry({}), auto_complete=True)
        available = available_versions(config, directory)
        select_versions(config, available, directory.name, layout_hint(directory, config))
    except InvalidModelConfig as error:
        return error.problems[0].hint
    except ServerError as error:
        return error.hint or ""
    raise AssertionError("it was not refused")


@pytest.mark.parametrize(
    ("files", "config", "hint"),
    [
        (["model.onnx"], "", f"found iris/model.onnx, {MAKE}"),
        (["iris.onnx"], 'backend: "onnxruntime"', f"found iris/iris.onnx, {MAKE}"),
        (["v1/model.onnx"], "", f"found iris/v1/model.onnx, {MAKE}"),
        ([], "", f"found nothing in iris, {MAKE}"),
        (["src/a.py"], "max_batch_size: 8", f"found src in iris, {MAKE}"),
        (
            ["1/iris.onnx"],
            "",
            "found iris/1/iris.onnx, expected iris/1/model.onnx: rename it, or write "
            'backend: "onnxruntime" and default_model_filename: "iris.onnx" into config.pbtxt',
        ),
        (
            ["1/model.joblib"],
            "",
            f"found model.joblib in iris/1, {ANY}: export the model to ONNX, or load it in a model.py of the backend "
            "python",
        ),
        (["1/notes.md"], "", f"found notes.md in iris/1, {ANY}"),
        (
            ["config.json", "onnx/model.onnx"],
            "",
            "found iris/config.json, as a text model of the Hub has it, without iris/tokenizer.json: copy or write it "
            "(a tokenizer that is Python code is not executed)",
        ),
        (
            [".cache/", "1/model.onnx"],
            "",
            "found the folder iris/.cache, expected a version there, since the first folder tells the backend: move it "
            "away, or write the backend into iris/config.pbtxt",
        ),
        (
            ["1/model.onnx", "2/model.onnx"],
            "version_policy { specific { versions: 7 } }",
            "found the versions 1, 2: change version_policy, or add a version",
        ),
    ],
)
def test_hint_names_found_and_expected_files_and_the_next_step(
    tmp_path: Path, files: list[str], config: str, hint: str
) -> None:
    directory = laid_out(tmp_path / "iris", *files, config=config)
    assert hint_of_load(directory) == hint
    assert [problem.hint for problem in check_model(directory, BackendRegistry({})).problems] == [hint]


def test_folder_of_one_model_is_refused_as_a_repository(tmp_path: Path) -> None:
    laid_out(tmp_path / "iris", "1/model.onnx")
    hint = (
        "found the folder of one model, expected a folder of models: name the folder around it as the repository, or "
        "serve it with --single-model=NAME"
    )
    assert hint_of_load(ModelDirectory("1", tmp_path / "iris" / "1")) == hint


@pytest.mark.parametrize(
    ("backend", "file", "hint"),
    [
        (
            "onnxruntime",
            "best.onnx",
            "found m/1/best.onnx, expected m/1/model.onnx: rename it, or write "
            'default_model_filename: "best.onnx" into config.pbtxt',
        ),
        (
            "python",
            "run.py",
            'found m/1/run.py, expected m/1/model.py: rename it, or write default_model_filename: "run.py" into '
            "config.pbtxt",
        ),
        (
            "python",
            "model.onnx",
            'found m/1/model.onnx, expected m/1/model.py: write backend: "onnxruntime" for it, or replace it',
        ),
    ],
)
def test_missing_model_file_has_a_hint(tmp_path: Path, backend: str, file: str, hint: str) -> None:
    directory = laid_out(tmp_path / "m", f"1/{file}", config=f'backend: "{backend}"')
    assert [problem.hint for problem in check_model(directory, BackendRegistry({})).problems] == [hint]


@pytest.mark.parametrize(
    ("files", "found", "also"),
    [
        ([], "nothing", ""),
        (["README.md"], "README.md", ""),
        (["best.onnx"], "best.onnx", ", or serve it with --single-model=NAME"),
    ],
)
def test_empty_repository_has_a_hint(tmp_path: Path, files: list[str], found: str, also: str) -> None:
    laid_out(tmp_path, *files)
    step = f"make a folder for each model, with a folder for each version{also}"
    assert no_models_hint(str(tmp_path)) == f"found {found}, expected MODEL/1/model.onnx: {step}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path / "one" / "m")


def write(folder: Path) -> Path:
    for version in "12":
        (folder / version / "parts").mkdir(parents=True)
        (folder / version / "model.onnx").write_text(f"weights {version}")
        (folder / version / "parts" / "more").write_text("more")
    (folder / "labels.txt").write_text("cat\ndog")
    (folder / "config.pbtxt").write_text("max_batch_size: 8")
    return folder


def digest(folder: Path, version: int = 1) -> bytes:
    found = ContentDigest(ModelDirectory("m", folder), version).digest()
    assert found is not None
    return found


@pytest.mark.parametrize("path", ["2/model.onnx", "config.pbtxt", "1/__pycache__/model.pyc", "golden/a.json"])
def test_files_that_do_not_affect_answers_are_not_in_the_digest(model: Path, path: str) -> None:
    before = digest(model)
    (model / path).parent.mkdir(exist_ok=True)
    (model / path).write_text("other")
    assert digest(model) == before
    assert digest(model, 2) != before


def test_digest_is_unknown_if_a_file_changed_after_the_load_began(model: Path) -> None:
    content = ContentDigest(ModelDirectory("m", model), 1)
    (model / "1" / "model.onnx").write_text("weights 9")
    assert content.digest() is None


def test_digest_follows_links_and_stops_at_cycles(model: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "1").symlink_to(model / "1")
    (linked / "labels.txt").symlink_to(model / "labels.txt")
    assert digest(linked) == digest(model)
    (model / "1" / "parts" / "up").symlink_to(model)
    digest(model)


def test_digest_of_a_missing_folder_is_unknown(tmp_path: Path) -> None:
    assert ContentDigest(ModelDirectory("m", tmp_path / "none"), 1).digest() is None


RENAME, WRITE = "rename it to config.pbtxt", "write it as iris/config.pbtxt, in the text format of protobuf"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["config.pbtext", "1/model.onnx"], ("iris/config.pbtext", RENAME)),
        (["Config.pbtxt", "1/model.onnx"], ("iris/Config.pbtxt", RENAME)),
        (["config.pbtxt.txt", "config", "1/model.onnx"], ("iris/config", RENAME)),
        (["config.yaml", "0/model.onnx"], ("iris/config.yaml", WRITE)),
        (["config.json", "1/model.py"], ("iris/config.json", WRITE)),
        (["0/config.pbtxt", "0/model.onnx"], ("iris/0/config.pbtxt", "move it to iris/config.pbtxt")),
        (["config.pbtxt", "config.yaml", "1/model.onnx"], None),
        (["config.json", "tokenizer.json", "onnx/model.onnx"], None),
        (["1/config.json", "1/model.py", "labels.txt"], None),
    ],
)
def test_file_that_may_be_meant_as_configuration(
    tmp_path: Path, files: list[str], found: tuple[str, str] | None
) -> None:
    directory = laid_out(tmp_path / "iris", *files)
    assert unread_configuration(directory) == found
    assert [(each.path, each.hint) for each in warnings_of(directory)] == ([found] if found else [])
