"""Runs what a source came with: the framework's own answers, and conversions. A script for a process of its own.

`trident import` starts it, perhaps with another Python than its own, so that it imports nothing of this project: what a
pickle or a native library does stays in this process. The arguments are a task, a file, and for a conversion the folder
to write into; the input is JSON on the standard input, and the result JSON on the last line of the standard output.
Arrays travel in .npz files without pickles: texts as fixed-width strings.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# What frameworks raise for a model or an input that they cannot take, unlike a failure of the machine.
_FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

# --- answers: each takes the file and the arrays by input, and gives arrays by output, or by number without names


def onnx(path: str, given: dict[str, Any]) -> dict[str, Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {name: array.astype(object) if array.dtype.kind in "SU" else array for name, array in given.items()}
    answers = dict(zip([each.name for each in session.get_outputs()], session.run(None, feed), strict=True))
    # The maps of a ZipMap, one for each row.
    return {
        name: np.array([list(row.values()) for row in value]) if isinstance(value, list) else value
        for name, value in answers.items()
    }


def openvino(path: str, given: dict[str, Any]) -> dict[str, Any]:
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # or the import sends usage to its maker
    import openvino as ov

    compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    answers = compiled(given)
    return {name: answers[output] for output in compiled.outputs for name in output.get_names()}


def savedmodel(path: str, given: dict[str, Any]) -> dict[str, Any]:
    import tensorflow

    signature = tensorflow.saved_model.load(path).signatures["serving_default"]
    answers = signature(**{name: tensorflow.constant(array) for name, array in given.items()})
    return {name: tensor.numpy() for name, tensor in answers.items()}


def xgboost(path: str, given: dict[str, Any]) -> dict[str, Any]:
    import xgboost as xgb

    booster = xgb.Booster(model_file=path)
    rounds = (0, _best_round(booster))
    scores = booster.inplace_predict(_only(given), iteration_range=rounds, validate_features=False)
    return _scores(scores, "binary:logistic" in booster.save_config())


def _best_round(booster: Any) -> int:
    """The rounds that XGBoost's classes for scikit-learn predict with; 0 for all."""
    best = booster.attr("best_iteration")
    return int(best) + 1 if best is not None else 0


def lightgbm(path: str, given: dict[str, Any]) -> dict[str, Any]:
    import lightgbm as lgb

    booster = lgb.Booster(model_file=path)
    return _scores(booster.predict(_only(given)), "objective=binary" in booster.model_to_string(num_iteration=1))


def catboost(path: str, given: dict[str, Any]) -> dict[str, Any]:
    import catboost as cat

    model = cat.CatBoost().load_model(path)
    if model.get_all_params().get("loss_function") not in ("Logloss", "MultiClass", "CrossEntropy"):
        return {"0": model.predict(_only(given))}
    return {"1": model.predict(_only(given), prediction_type="Probability")}


def pickled(path: str, given: dict[str, Any]) -> dict[str, Any]:
    model = _unpickle(path)
    rows = _only(given)
    answers = {"0": model.predict(rows)}
    if hasattr(model, "predict_proba"):
        answers["1"] = model.predict_proba(rows)
    return answers


def boosted(path: str, given: dict[str, Any]) -> dict[str, Any]:
    """A pickle of XGBoost's or LightGBM's classes for scikit-learn, which is served as trees."""
    answers = pickled(path, given)
    return {"0": answers.get("1", answers["0"])}


def torchscript(path: str, given: dict[str, Any]) -> dict[str, Any]:
    return _torch_answers(_load_torch("torchscript", path), given)


def package(path: str, given: dict[str, Any]) -> dict[str, Any]:
    return _torch_answers(_load_torch("package", path), given)


def _only(given: Mapping[str, Any]) -> Any:
    (array,) = given.values()
    return array


def _scores(scores: Any, is_binary: bool) -> dict[str, Any]:
    scores = np.asarray(scores)
    return {"0": np.stack([1 - scores, scores], axis=1) if is_binary and scores.ndim == 1 else scores}


def _unpickle(path: str) -> Any:
    if zipfile.is_zipfile(path):
        import skops.io

        return skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path))
    try:
        import joblib
    except ImportError:
        try:
            import cloudpickle as pickle
        except ImportError:
            import pickle
        return pickle.loads(Path(path).read_bytes())
    return joblib.load(path)


def _load_torch(kind: str, path: str) -> Callable[..., Any]:
    # `torch.export.load` would read any pickle of a package otherwise.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    import torch

    if kind == "torchscript":
        return torch.jit.load(path, map_location="cpu").eval()  # type: ignore[no-any-return]
    with zipfile.ZipFile(path) as archive:
        is_compiled = any(name.endswith(".wrapper.cpp") or name.endswith(".so") for name in archive.namelist())
    if is_compiled:
        return torch._inductor.aoti_load_package(path)  # type: ignore[no-any-return]
    return torch.export.load(path).module()  # type: ignore[no-any-return]


def _torch_answers(module: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    with torch.no_grad():
        answer = module(*(torch.from_numpy(np.ascontiguousarray(array)) for array in given.values()))
    return {str(number): tensor.detach().cpu().numpy() for number, tensor in enumerate(_leaves(answer))}


def _leaves(answer: Any) -> list[Any]:
    if isinstance(answer, Mapping):
        answer = list(answer.values())
    return [leaf for part in answer for leaf in _leaves(part)] if isinstance(answer, (list, tuple)) else [answer]


# --- what a TorchScript archive and a compiled package do not say: their tensors. They are run to see.

_SIZES = {"FP16": "float16", "FP32": "float32", "FP64": "float64", "BOOL": "bool"}


def tensors(path: str, asked: Any) -> dict[str, Any]:
    """`kind`, and `inputs`: pairs of datatype and dims, or None to guess them. The tensors of one run that works."""
    module = _load_torch(asked["kind"], path)
    candidates = [asked["inputs"]] if asked["inputs"] else _guesses(module)
    failure = ""
    for inputs in candidates:
        try:
            one, two = (_shapes(module, inputs, rows) for rows in (2, 3))
        except _FAILURES as error:
            failure = (str(error).strip() or type(error).__name__).splitlines()[-1]
            continue
        outputs = [
            (datatype, [size if size == other else -1 for size, other in zip(dims, dims_of_two, strict=True)])
            for (datatype, dims), (_, dims_of_two) in zip(one, two, strict=True)
        ]
        return {"inputs": inputs, "outputs": outputs}
    return {"failure": failure or "it takes no tensors that can be guessed"}


def _shapes(module: Any, inputs: Any, rows: int) -> list[tuple[str, list[int]]]:
    shapes = {
        str(number): np.zeros([rows if size == -1 else size for size in dims], _SIZES.get(datatype, datatype.lower()))
        for number, (datatype, dims) in enumerate(inputs)
    }
    answers = _torch_answers(module, shapes).values()
    return [(_datatype(array.dtype), list(array.shape)) for array in answers]


def _datatype(dtype: Any) -> str:
    return {name: datatype for datatype, name in _SIZES.items()}.get(str(dtype), str(dtype).upper())


def _guesses(module: Any) -> list[list[tuple[str, list[int]]]]:
    """Inputs that fit the first weights of a module with one or more tensors as arguments."""
    arguments = max(1, len(module.forward.schema.arguments) - 1)
    found: list[list[tuple[str, list[int]]]] = []
    for name, weight in list(module.state_dict().items())[:8]:
        shape = list(weight.shape)
        if len(shape) == 4:
            found.append([("FP32", [-1, shape[1], 224, 224])])
        elif len(shape) == 3:
            found.append([("FP32", [-1, shape[1], 64])])
        elif len(shape) == 2:
            if "emb" in name:
                found.append([("INT64", [-1, 8])])
            found.append([("FP32", [-1, shape[1]])])
            # Weights that are used as they are, as in `x @ weights`.
            found.append([("FP32", [-1, shape[0]])])
    found += [[("FP32", [-1, 4])], [("FP32", [-1, 3, 224, 224])]]
    return [inputs * arguments for inputs in found]


# --- conversions: each writes the file of a served model into a folder, and says which


def from_catboost(path: str, folder: str, asked: Any) -> dict[str, Any]:
    import catboost as cat

    model = cat.CatBoost().load_model(path)
    model.save_model(str(Path(folder, "model.onnx")), format="onnx")
    return {"made": "onnx", "what": f"CatBoost {cat.__version__}"}


def from_early_stopped(path: str, folder: str, asked: Any) -> dict[str, Any]:
    """The trees of XGBoost up to the best round, with which its classes for scikit-learn predict."""
    import xgboost as xgb

    booster = xgb.Booster(model_file=path)
    rounds = _best_round(booster)
    booster[:rounds].save_model(str(Path(folder, "xgboost.json")))
    return {"rounds": rounds, "of": booster.num_boosted_rounds()}


def from_pickle(path: str, folder: str, asked: Any) -> dict[str, Any]:
    """A pickled estimator as trees or ONNX; `made` is `pickled`, with the reason, where it can only be unpickled."""
    model = _unpickle(path)
    top = type(model).__module__.partition(".")[0]
    what = f"{type(model).__name__} of {top} {getattr(sys.modules.get(top), '__version__', '')}".strip()
    has_classes = hasattr(model, "predict_proba")
    if top == "xgboost":
        booster = model.get_booster() if hasattr(model, "get_booster") else model
        booster.save_model(str(Path(folder, "xgboost.json")))
        missing = getattr(model, "missing", None)
        return {"made": "xgboost.json", "what": what, "missing": None if missing is None else str(missing)}
    if top == "lightgbm":
        booster = getattr(model, "booster_", model)
        booster.save_model(str(Path(folder, "model.txt")))
        return {"made": "model.txt", "what": what}
    if top == "catboost":
        model.save_model(str(Path(folder, "model.onnx")), format="onnx")
        return {"made": "onnx", "what": what}
    if not hasattr(model, "predict"):
        return {"failure": f"it is a {type(model).__module__}.{type(model).__name__}, which has no `predict`"}
    width = asked["width"] or getattr(model, "n_features_in_", 0)
    if not width:
        return {"failure": "it does not say how many features it takes: --input=FP32:1,N does"}
    known = {"what": what, "width": width, "has_classes": has_classes, "needs": _needs(top)}
    try:
        from skl2onnx import to_onnx

        options = {id(model): {"zipmap": False}} if has_classes else None
        graph = to_onnx(model, np.zeros((1, width), np.float32), options=options)
        Path(folder, "model.onnx").write_bytes(graph.SerializeToString())
        return {"made": "onnx", **known}
    except ImportError as error:
        reason = f"{error.name} is not installed"
    except _FAILURES as error:
        reason = f"skl2onnx: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
    answer = np.asarray(model.predict(np.zeros((1, width), np.float32)))
    label = "STRING" if answer.dtype.kind in "OUS" else _datatype(answer.dtype)
    return {"made": "pickled", "reason": reason, "label": label, "columns": list(answer.shape[1:]), **known}


def _needs(module: str) -> str:
    """The line of a requirements.txt for the package of a module."""
    from importlib.metadata import packages_distributions, version

    package = next(iter(packages_distributions().get(module, [])), module)
    return f"{package}=={version(package)}"


ANSWERS: Mapping[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
    each.__name__: each
    for each in (onnx, openvino, savedmodel, xgboost, lightgbm, catboost, pickled, boosted, torchscript, package)
}
CONVERSIONS: Mapping[str, Callable[[str, str, Any], dict[str, Any]]] = {
    each.__name__: each for each in (from_catboost, from_early_stopped, from_pickle)
}


def _without_objects(array: Any) -> Any:
    return array.astype(str) if array.dtype.kind == "O" else array


def main(arguments: Sequence[str]) -> None:
    """Raise whatever the framework raises."""
    task, path, *others = arguments
    warnings.simplefilter("ignore")
    if task == "tensors":
        result: Any = tensors(path, json.load(sys.stdin))
    elif task in CONVERSIONS:
        result = CONVERSIONS[task](path, others[0], json.load(sys.stdin))
    else:
        with np.load(others[0], allow_pickle=False) as stored:
            answers = ANSWERS[task](path, dict(stored))
        arrays = {name: _without_objects(np.asarray(array)) for name, array in answers.items()}
        # A later numpy would take `allow_pickle`, and this one may be older.
        np.savez(others[1], **arrays)
        result = sorted(arrays)
    print(f"\n{json.dumps(result)}")


if __name__ == "__main__":
    # The folder of this script has modules with the names of frameworks' files.
    del sys.path[0]
    main(sys.argv[1:])
