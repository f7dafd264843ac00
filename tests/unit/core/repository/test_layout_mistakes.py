"""What people put in the wrong place, and what the server, the load call and `trident validate` say about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.core.backends.registry import BackendRegistry
from trident.core.config.problem import InvalidModelConfig
from trident.core.errors import ConfigInvalid, ServerError
from trident.core.repository.config import check_config, problems_of, read_config
from trident.core.repository.layout_mistakes import layout_hint, no_models_hint
from trident.core.repository.repository import ModelDirectory, available_versions, select_versions

ANY = (
    "expected one of model.savedmodel, model.graphdef, model.plan, model.onnx, model.xml, model.pt, model.pt2, model.py"
)


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
        (
            ["model.onnx"],
            "",
            "found iris/model.onnx, expected iris/1/model.onnx: make the folder iris/1 and move it there",
        ),
        (
            ["iris.onnx"],
            'backend: "onnxruntime"',
            "found iris/iris.onnx, expected iris/1/model.onnx: make the folder iris/1 and move it there",
        ),
        (
            ["1/iris.onnx"],
            "",
            "found iris/1/iris.onnx, expected iris/1/model.onnx: rename it, or write "
            'backend: "onnxruntime" and default_model_filename: "iris.onnx" into config.pbtxt',
        ),
        (["1/Model.onnx"], "", "found iris/1/Model.onnx, expected iris/1/model.onnx: rename it"),
        (
            ["1/model.joblib"],
            "",
            f"found iris/1/model.joblib, which no backend takes by its name, {ANY}: export the model to ONNX, or load "
            "it in a model.py of the backend python",
        ),
        (["1/"], "", f"found nothing in iris/1, {ANY}: put the model there"),
        (["1/notes.md"], "", f"found notes.md in iris/1, {ANY}: put the model there"),
        (["v1/model.pt"], "", "found iris/v1/model.pt, expected iris/1/model.pt: rename the folder to 1"),
        (
            [".cache/", "1/model.onnx"],
            "",
            "found the folder iris/.cache, expected a version there, since the first folder tells the backend: move it "
            "away, or write the backend into iris/config.pbtxt",
        ),
        (["1"], "", "found the file iris/1, expected a folder of that name with the model in it: make it one"),
        ([], "", "found nothing in iris, expected iris/1/model.onnx: make the folder iris/1 for the model's file"),
        (
            ["src/a.py"],
            "max_batch_size: 8",
            "found src in iris, expected iris/1/model.onnx: make the folder iris/1 for the model's file",
        ),
        (
            ["1/model.onnx"],
            'platform: "onnx"',
            'found platform: "onnx", expected "onnxruntime_onnx": correct it in iris/config.pbtxt, or remove the line: '
            "iris/1/model.onnx says it",
        ),
        (
            ["1/model.x"],
            'platform: "pytorch"',
            'found platform: "pytorch", expected "pytorch_libtorch": correct it in iris/config.pbtxt',
        ),
        (
            ["1/model.onnx", "2/model.onnx"],
            "version_policy { specific { versions: 7 } }",
            "found the versions 1, 2: change version_policy, or add a version",
        ),
    ],
)
def test_a_refused_model_says_what_was_found_what_is_expected_and_the_missing_step(
    tmp_path: Path, files: list[str], config: str, hint: str
) -> None:
    directory = laid_out(tmp_path / "iris", *files, config=config)
    assert hint_of_load(directory) == hint
    assert [problem.hint for problem in problems_of(directory, BackendRegistry({}))] == [hint]


def test_the_folder_of_one_model_is_no_repository(tmp_path: Path) -> None:
    laid_out(tmp_path / "iris", "1/model.onnx")
    hint = (
        "found the folder of one model, expected a folder of models: name the folder around it as the repository, or "
        "serve it with --single-model=NAME"
    )
    assert hint_of_load(ModelDirectory("1", tmp_path / "iris" / "1")) == hint


@pytest.mark.parametrize(
    ("backend", "file", "hint"),
    [
        ("onnxruntime", "Model.onnx", "found m/1/Model.onnx, expected m/1/model.onnx: rename it"),
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
def test_a_backend_that_misses_its_file_says_the_same(tmp_path: Path, backend: str, file: str, hint: str) -> None:
    directory = laid_out(tmp_path / "m", f"1/{file}", config=f'backend: "{backend}"')
    assert [problem.hint for problem in problems_of(directory, BackendRegistry({}))] == [hint]


def test_a_misspelled_backend_names_the_nearest(tmp_path: Path) -> None:
    directory = laid_out(tmp_path / "m", "1/model.onnx", config='backend: "onnx"')
    with pytest.raises(ConfigInvalid) as refused:
        BackendRegistry({}).find(read_config(directory))
    assert (refused.value.hint or "").startswith("did you mean 'onnxruntime'? this server has the backends: ")


@pytest.mark.parametrize(
    ("files", "found", "step"),
    [
        ([], "nothing", "make a folder for each model, with a folder for each version"),
        (["README.md"], "README.md", "make a folder for each model, with a folder for each version"),
        (
            ["best.onnx"],
            "best.onnx",
            "move it into a folder for the model, with a folder for the version, or serve it with --single-model=NAME",
        ),
    ],
)
def test_a_repository_without_models_says_what_it_holds(
    tmp_path: Path, files: list[str], found: str, step: str
) -> None:
    laid_out(tmp_path, *files)
    assert no_models_hint(str(tmp_path)) == f"found {found}, expected MODEL/1/model.onnx: {step}"
