"""Runs what a source came with: the framework's own answers, and conversions. A script for a process of its own.

`trident import` starts it, perhaps with another Python than its own, so that it imports nothing of this project: what a
pickle or a native library does stays in this process. The arguments are a task, a file, and a folder: a conversion
writes its file there, and an answer reads given-N.npz, one for each group of rows, and writes answered-N.npz. The input
is JSON on the standard input, and the result JSON on the last line of the standard output: of answers why the original
refuses the rows of each group, or "". Arrays are stored without pickles: texts as fixed-width strings.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

# What frameworks raise for a model or an input that they cannot take, unlike a failure of the machine.
_FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

# --- answers: each takes the file and the arrays by input, and gives arrays by output, or by number without names


@cache
def _session(path: str) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def onnx(path: str, given: dict[str, Any]) -> dict[str, Any]:
    session = _session(path)
    feed = {name: array.astype(object) if array.dtype.kind in "SU" else array for name, array in given.items()}
    answers = dict(zip([each.name for each in session.get_outputs()], session.run(None, feed), strict=True))
    # The maps of a ZipMap, one for each row.
    return {
        name: np.array([list(row.values()) for row in value]) if isinstance(value, list) else value
        for name, value in answers.items()
    }


@cache
def _compiled(path: str) -> Any:
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # or the import sends usage to its maker
    import openvino as ov

    return ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


def openvino(path: str, given: dict[str, Any]) -> dict[str, Any]:
    compiled = _compiled(path)
    answers = compiled(given)
    return {name: answers[output] for output in compiled.outputs for name in output.get_names()}


@cache
def _saved_model(path: str) -> Any:
    import tensorflow

    return tensorflow.saved_model.load(path)


def savedmodel(path: str, given: dict[str, Any]) -> dict[str, Any]:
    import tensorflow

    signature = _saved_model(path).signatures["serving_default"]
    answers = signature(**{name: tensorflow.constant(array) for name, array in given.items()})
    return {name: tensor.numpy() for name, tensor in answers.items()}


def xgboost(path: str, given: dict[str, Any]) -> dict[str, Any]:
    import xgboost as xgb

    return _of_booster(xgb.Booster(model_file=path), given)


def _of_booster(booster: Any, given: dict[str, Any], missing: float = np.nan) -> dict[str, Any]:
    rounds, config = (0, _best_round(booster)), booster.save_config()
    if '"gblinear"' in config:
        import xgboost as xgb

        scores = booster.predict(xgb.DMatrix(_only(given), missing=missing), iteration_range=rounds)
    else:
        scores = booster.inplace_predict(_only(given), iteration_range=rounds, missing=missing, validate_features=False)
    return _scores(scores, "binary:logistic" in config)


def _best_round(booster: Any) -> int:
    """The rounds that XGBoost's classes for scikit-learn predict with; 0 for all."""
    best = booster.attr("best_iteration")
    return int(best) + 1 if best is not None else 0


def lightgbm(path: str, given: dict[str, Any]) -> dict[str, Any]:
    import lightgbm as lgb

    booster = lgb.Booster(model_file=path)
    return _scores(booster.predict(_only(given)), "objective=binary" in booster.model_to_string(num_iteration=1))


def catboost(path: str, given: dict[str, Any]) -> dict[str, Any]:
    model = _catboost(path)
    return _asked(model, _table(model, list(given.values())))


@cache
def _catboost(path: str) -> Any:
    """The model as the class of which it is: a file does not say it."""
    import catboost as cat

    loss = _loss(cat.CatBoost().load_model(path))
    return (cat.CatBoostClassifier() if loss in _CLASSES else cat.CatBoostRegressor()).load_model(path)


def _loss(model: Any) -> str:
    return str(model.get_all_params().get("loss_function")).partition(":")[0]


# Losses of CatBoost: of classes, of several answers a row, and those of which `predict` gives the exponent.
_CLASSES = ("Logloss", "CrossEntropy", "Focal", "MultiClass", "MultiClassOneVsAll", "MultiLogloss", "MultiCrossEntropy")
_SEVERAL = (
    *("RMSEWithUncertainty", "MultiQuantile", "MultiRMSE", "MultiRMSEWithMissingValues"),
    *("MultiLogloss", "MultiCrossEntropy"),
)
_EXPONENTS = ("Poisson", "Tweedie")


def pickled(path: str, given: dict[str, Any]) -> dict[str, Any]:
    model = _unpickle(path)
    return _asked(model, _table(model, list(given.values())))


def _asked(model: Any, table: Any) -> dict[str, Any]:
    """The answers of an estimator's public functions, in the order of the outputs that it is served with."""
    try:
        return _answers(model, table)
    except ValueError as error:
        # KMeans and others that were fitted with FP32 take nothing else.
        if "dtype mismatch" not in str(error):
            raise
        return _answers(model, table.astype(np.float32))


def _answers(model: Any, table: Any) -> dict[str, Any]:
    if not hasattr(model, "predict"):
        answer = model.transform(table)
        return {"0": answer.toarray() if hasattr(answer, "toarray") else answer}
    answers = {"0": model.predict(table)}
    if hasattr(model, "predict_proba"):
        probabilities = model.predict_proba(table)
        # Those of several labels are a list, which is no array where one has more classes than another.
        if not isinstance(probabilities, list) or len({each.shape for each in probabilities}) == 1:
            answers["1"] = probabilities
    elif getattr(model, "_estimator_type", "") == "outlier_detector" or hasattr(model, "score_samples"):
        answers["1"] = (
            model.decision_function(table) if hasattr(model, "decision_function") else model.score_samples(table)
        )
    return answers


def boosted(path: str, given: dict[str, Any]) -> dict[str, Any]:
    """A pickle of XGBoost's or LightGBM's classes for scikit-learn, which is served as trees."""
    model = _unpickle(path)
    if hasattr(model, "inplace_predict"):
        return _of_booster(model, given)
    rows = _only(given)
    if not hasattr(model, "predict_proba"):
        return {"0": model.predict(rows)}
    if getattr(model, "objective", "") in _WITHOUT_PROBABILITIES:
        return _of_booster(model.get_booster(), given, model.missing)
    return {"0": model.predict_proba(rows)}


# Objectives of XGBoost for classes whose scores are none, of which `predict_proba` makes columns all the same.
_WITHOUT_PROBABILITIES = ("binary:hinge", "binary:logitraw", "multi:softmax")


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


# The packages whose classes and functions pickles have named.
_NAMED: set[str] = set()


@cache
def _unpickle(path: str) -> Any:
    sys.addaudithook(lambda event, given: _NAMED.add(given[0].partition(".")[0]) if "find_class" in event else None)
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


@cache
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
    """A .cbm file, or the model of a pickle, which is `asked`, as ONNX."""
    import catboost as cat

    model, file = asked or _catboost(path), str(Path(folder, "model.onnx"))
    loss = _loss(model)
    failure = f"CatBoost's ONNX cannot have the several answers of {loss}" if loss in _SEVERAL else ""
    for kind in ("cat", "text", "embedding"):
        if found := getattr(model, f"get_{kind}_feature_indices")():
            failure = f"CatBoost's ONNX cannot have its {kind}_features {list(found)}"
    try:
        if not failure:
            model.save_model(file, format="onnx")
    except cat.CatBoostError as error:
        failure = f"CatBoost does not export it as ONNX: {str(error).splitlines()[0]}"
    if failure:
        model.save_model(str(Path(folder, "model.cbm")))
        return {"failure": failure, "saved": "model.cbm"}
    if loss in _EXPONENTS:
        import onnx

        graph = onnx.load(file)
        (name,) = graph.graph.node[-1].output
        graph.graph.node[-1].output[0] = "exponent"
        graph.graph.node.append(onnx.helper.make_node("Exp", ["exponent"], [name]))
        onnx.save(graph, file)
    thresholds = [[int(number), border] for number, borders in model.get_borders().items() for border in borders]
    return {"made": "onnx", "what": f"CatBoost {cat.__version__}", "thresholds": thresholds}


def from_library(path: str, folder: str, asked: str) -> dict[str, Any]:
    """The tensors of a model that only the library `asked` can run, from the answer to one row."""
    given: list[dict[str, Any]] = [{"name": "input__0", "datatype": "FP32", "known": []}]
    names = ["output__0"]
    if asked == "catboost":
        model = _catboost(path)
        texts = {*model.get_cat_feature_indices(), *model.get_text_feature_indices()}
        count = len(model.feature_names_)
        names = ["label", "probabilities"] if hasattr(model, "predict_proba") else ["prediction"]
        given[0]["name"] = "features"
        if texts:
            # CatBoost calls columns without a name by their number.
            given = [
                {"name": f"x{name}" if name.isdecimal() else name, "datatype": "FP32", "known": []}
                for name in model.feature_names_
            ]
            for number in texts:
                given[number] |= {"datatype": "BYTES", "known": [["text"]]}
    elif asked == "xgboost":
        import xgboost as xgb

        model = xgb.Booster(model_file=path)
        count = model.num_features()
    else:
        import lightgbm as lgb

        model = lgb.Booster(model_file=path)
        count = model.num_feature()
    top = type(model).__module__.partition(".")[0]
    width = count if len(given) == 1 else 1
    row = {
        each["name"]: np.array([["text"]], object) if each["datatype"] == "BYTES" else np.zeros((1, width), np.float32)
        for each in given
    }
    try:
        arrays = [np.asarray(answer) for answer in ANSWERS[asked](path, row).values()]
    except Exception as error:  # the library's own, of rows that it does not take
        return {"failure": (str(error).strip() or type(error).__name__).splitlines()[0]}
    return {
        "what": f"model of {top} {sys.modules[top].__version__}",
        "inputs": [{**each, "width": width, "usual": []} for each in given],
        "outputs": [[name, *_row_of(array)] for name, array in zip(names, arrays, strict=False)],
        "needs": _needs(model),
        "thresholds": [],
        "table": {"is_line": False, "names": []},
    }


def _row_of(array: Any) -> tuple[str, list[int]]:
    """The datatype of an answer, and the shape of a row of it."""
    return "BYTES" if array.dtype.kind in "OUS" else _datatype(array.dtype), list(array.shape[1:])


def from_xgboost(path: str, folder: str, asked: Any) -> dict[str, Any]:
    """The trees of XGBoost up to the best round, with which its classes for scikit-learn predict, and without the names
    of categories, for which a served tensor has the codes."""
    import xgboost as xgb

    booster = xgb.Booster(model_file=path)
    of, rounds, file = booster.num_boosted_rounds(), _best_round(booster), Path(folder, "xgboost.json")
    (booster[:rounds] if rounds else booster).save_model(str(file))
    written = json.loads(file.read_text())
    inner = written["learner"]["gradient_booster"]
    model = inner.get("gbtree", inner)["model"]  # that of DART is deeper
    if "cats" in model:
        model["cats"] = {"enc": [], "feature_segments": [], "sorted_idx": []}
    file.write_text(json.dumps(written))
    return {"rounds": rounds, "of": of}


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
        return {**from_catboost(path, folder, model), "what": what}
    if not hasattr(model, "predict") and not hasattr(model, "transform"):
        name = f"{type(model).__module__}.{type(model).__name__}"
        return {"failure": f"it is a {name}, which has neither `predict` nor `transform`"}
    try:
        inputs = _inputs(model, asked["inputs"])
    except ValueError as error:
        return {"failure": str(error)}
    usual, edges = _usual(model, sum(each["width"] for each in inputs))
    for each in inputs:
        each["usual"], usual = usual[: each["width"]], usual[each["width"] :]
    known = {
        "what": what,
        "inputs": inputs,
        "needs": sorted({"joblib", *_needs(model)}),
        "thresholds": [*_thresholds(model), *edges],
        "table": {"is_line": _is_line(model), "names": _names(model)},
    }
    row = []
    for each in inputs:
        other = "text" if each["datatype"] == "BYTES" else 0
        values = np.array([[values[0] if values else other for values in each["known"]]])
        row.append(values.astype(float) if each["datatype"].startswith("FP") else values)
    try:
        answers = _asked(model, _table(model, row))
    except _FAILURES as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        return {"failure": f"it does not take {_shown(inputs)}: {text}"}
    names = ["label", "probabilities"] if hasattr(model, "predict") else ["transformed"]
    # As a Python model; its answers are a row for each row, unlike the probabilities of several labels.
    arrays = [np.asarray(answer) for answer in list(answers.values())[: 1 + has_classes]]
    arrays = [arrays[0], *(array for array in arrays[1:] if array.shape[:1] == (1,))]
    if arrays[0].shape[:1] == (1,) and all(array.dtype.kind in "OUSbiuf" for array in arrays):
        known["outputs"] = [[name, *_row_of(array)] for name, array in zip(names, arrays, strict=False)]
    try:
        from skl2onnx import get_latest_tested_opset_version, to_onnx

        numbered = _by_number(model)
        options = {id(numbered): {"zipmap": False}} if has_classes else None
        types = [(each["name"], _onnx_type(each)) for each in inputs]
        # Some of its converters have no later version of that domain.
        versions = {"": get_latest_tested_opset_version(), "ai.onnx.ml": 3}
        graph = to_onnx(numbered, initial_types=types, options=options, target_opset=versions)
        _divide_labels(graph.graph)
        _send_missing(graph.graph, model)
        Path(folder, "model.onnx").write_bytes(graph.SerializeToString())
        return {"made": "onnx", **known}
    except ImportError as error:
        reason = f"{error.name} is not installed"
    except Exception as error:  # it has classes of its own, and raises others for what it did not expect
        reason = f"skl2onnx: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
    if "outputs" not in known:
        shown = ", ".join(f"{array.dtype} {list(array.shape)}" for array in arrays)
        return {"failure": f"its answer to one row is not a row of numbers or texts ({shown}), and {reason}"}
    return {"made": "pickled", "reason": reason, **known}


def _divide_labels(graph: Any) -> None:
    """Make a label a row of the labels that a converter writes as one row of all: nothing could batch them."""
    from onnx import TensorProto, helper

    (label, *_) = graph.output
    dims = label.type.tensor_type.shape.dim
    if len(dims) != 2 or dims[0].dim_value != 1:
        return
    for node in graph.node:
        node.output[:] = ["labels in one row" if name == label.name else name for name in node.output]
    graph.initializer.append(helper.make_tensor("one dimension", TensorProto.INT64, [1], [-1]))
    graph.node.append(helper.make_node("Reshape", ["labels in one row", "one dimension"], [label.name]))
    del dims[0]


def _send_missing(graph: Any, model: Any) -> None:
    """Let NaN go down the trees of a graph as down those of scikit-learn, which its converter leaves out."""
    sides: dict[Any, list[Any]] = {}
    for part in _inside(model):
        tree: Any = getattr(part, "tree_", None)
        if hasattr(tree, "missing_go_to_left"):
            inner = tree.children_left != -1
            shape = (tuple(tree.feature[inner].tolist()), tuple(tree.children_left[inner].tolist()))
            sides.setdefault(shape, []).append(tree.missing_go_to_left)
    for node in graph.node:
        given = {each.name: each for each in node.attribute}
        if "nodes_missing_value_tracks_true" not in given:
            continue
        names = ("nodes_treeids", "nodes_featureids", "nodes_truenodeids")
        trees, features, lefts = (np.array(given[name].ints) for name in names)
        inner = np.array([mode != b"LEAF" for mode in given["nodes_modes"].strings])
        for number in dict.fromkeys(trees.tolist()):
            at = np.flatnonzero(trees == number)
            chosen = at[inner[at]]
            # Trees of one shape are in the order of the estimators.
            found = sides.get((tuple(features[chosen].tolist()), tuple(lefts[chosen].tolist())))
            if found:
                for place, goes_left in zip(at, found.pop(0), strict=False):
                    given["nodes_missing_value_tracks_true"].ints[place] = int(goes_left)


# --- what estimators of scikit-learn take: numbers, texts, or columns of both


def _is_line(model: Any) -> bool:
    """True for a model of one text a row, which it takes as a list."""
    return any(hasattr(each, "build_analyzer") for each in _first(model))


def _names(model: Any) -> list[str]:
    return [str(each) for each in getattr(model, "feature_names_in_", [])]


def _first(model: Any) -> list[Any]:
    """The estimators inside a model that see what it is given, as they are fitted."""
    if hasattr(model, "best_estimator_"):
        return _first(model.best_estimator_)
    if hasattr(model, "steps"):
        steps = [step for _, step in model.steps if step is not None and step != "passthrough"]
        return _first(steps[0]) if steps else []
    if hasattr(model, "transformer_list"):
        return [each for _, part in model.transformer_list if hasattr(part, "fit") for each in _first(part)]
    return [model]


def _columns(model: Any, count: int) -> list[list[Any]]:
    """The texts or numbers that a model knows of each of its columns; none of a column of any numbers."""
    known: list[list[Any]] = [[] for _ in range(count)]
    for part in _first(model):
        if hasattr(part, "transformers_"):
            for _, inner, columns in part.transformers_:
                places = _places(part, columns)
                if not hasattr(inner, "fit") or not places:
                    continue
                of_inner = [_texts(_first(inner)[0])] if _is_line(inner) else _columns(inner, len(places))
                for place, values in zip(places, of_inner, strict=True):
                    known[place] = known[place] or values
        elif hasattr(part, "categories_"):
            known = [values.tolist() for values in part.categories_]
        elif hasattr(part, "statistics_") and part.statistics_.dtype.kind in "OU":
            known = [[value] for value in part.statistics_.tolist()]
    # Neither None nor NaN, which stand for a missing value, can be told to all models.
    return [[value for value in values if value is not None and value == value] for values in known]


def _places(model: Any, columns: Any) -> list[int]:
    """The numbers of columns that a ColumnTransformer names by numbers, names, a slice or a mask."""
    if isinstance(columns, slice):
        return list(range(model.n_features_in_))[columns]
    if isinstance(columns, (str, int)):
        columns = [columns]
    columns = list(columns)
    if columns and all(isinstance(each, (bool, np.bool_)) for each in columns):
        return [place for place, chosen in enumerate(columns) if chosen]
    names = _names(model)
    return [names.index(each) if isinstance(each, str) else int(each) for each in columns]


def _texts(vectorizer: Any) -> list[str]:
    """Texts of words that a vectorizer knows, with others, and an empty one."""
    words = [str(each) for each in list(getattr(vectorizer, "vocabulary_", {}))[:500]] or ["text", "word"]
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(words, random.integers(1, 9))) for _ in range(40)]
    odd = [
        "",
        " ",
        "unknown words",
        f"{words[0]}, {words[-1].upper()}!",
        f"{words[0]}\u00e9 {words[-1]}",
        " ".join(words),
    ]
    return texts + odd


def _inputs(model: Any, asked: Sequence[Any]) -> list[dict[str, Any]]:
    """The served inputs: `name`, `datatype`, `width`, and as `known` the values that the model knows of each column.

    `asked` are pairs of datatype and width that a person has named. Raises ValueError if the columns are unknown.
    """
    if _is_line(model):
        if asked and list(asked) != [["BYTES", 1]]:
            raise ValueError("it takes one text a row, X BYTES [-1, 1]: leave --input out")
        texts = [text for part in _first(model) if hasattr(part, "build_analyzer") for text in _texts(part)]
        return [{"name": "X", "datatype": "BYTES", "width": 1, "known": [texts]}]
    count = next((each.n_features_in_ for each in (model, *_first(model)) if hasattr(each, "n_features_in_")), 0)
    widths = [width for _, width in asked]
    count = count or sum(widths)
    if not count:
        raise ValueError("it does not say how many columns it takes: --input=FP32:1,N does, and BYTES for texts")
    if asked and widths not in ([count], [1] * count):
        raise ValueError(f"it takes {count} columns: --input=FP32:1,{count}, or an --input of one column for each")
    known = _columns(model, count)
    are_texts = [bool(values) and isinstance(values[0], str) for values in known]
    names = _names(model) or [f"x{number}" for number in range(count)]
    for place, name in enumerate(names):
        datatype = asked[place % len(asked)][0] if asked else ""
        if datatype and known[place] and are_texts[place] != (datatype == "BYTES"):
            raise ValueError(f"its column {name} has {known[place][0]!r}, unlike {datatype}: leave --input out")
    # Categories such as 0.1 and 16777217 have no FP32.
    usual = [
        ("FP32", "FP64")[any(value != np.float32(value) for value in values if _is_number(value))] for values in known
    ]
    if len(asked) == 1 or (not asked and not any(are_texts)):
        datatype, width = asked[0] if asked else (max(usual), count)
        return [{"name": "X", "datatype": datatype, "width": width, "known": known}]
    datatypes = [datatype for datatype, _ in asked] if len(asked) == count else []
    datatypes = datatypes or ["BYTES" if is_text else each for is_text, each in zip(are_texts, usual, strict=True)]
    return [
        {"name": name, "datatype": datatype, "width": 1, "known": [values]}
        for name, datatype, values in zip(names, datatypes, known, strict=True)
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(inputs: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{each['name']} {each['datatype']} [-1, {each['width']}]" for each in inputs)


def _table(model: Any, arrays: Sequence[Any]) -> Any:
    """The argument of the model: a list of texts, a table with its names, or an array. Numbers are doubles, in which a
    person asks it: estimators compute in FP32 for FP32."""
    kinds = {"S": object, "U": object, "f": np.float64}
    columns = [array.astype(kinds.get(array.dtype.kind, array.dtype)) for array in arrays]
    if _is_line(model):
        return list(columns[0][:, 0])
    names = _names(model)
    if names:
        import pandas as pd

        parts = [array[:, number] for array in columns for number in range(array.shape[1])]
        return pd.DataFrame(dict(zip(names, parts, strict=True)))
    return columns[0] if len(columns) == 1 else np.concatenate([each.astype(object) for each in columns], axis=1)


def _by_number(model: Any) -> Any:
    """The model, whose first columns are named by numbers: those of a served tensor have no names."""
    from copy import deepcopy

    if not any(hasattr(part, "transformers_") for part in _first(model)):
        return model
    made = deepcopy(model)
    for part in _first(made):
        if hasattr(part, "transformers_"):
            part.transformers_ = [
                (name, inner, columns if isinstance(columns, int) else _places(part, columns))
                for name, inner, columns in part.transformers_
            ]
    return made


def _onnx_type(given: Mapping[str, Any]) -> Any:
    from skl2onnx.common import data_types as types

    kinds = {
        "FP32": types.FloatTensorType,
        "FP64": types.DoubleTensorType,
        "INT64": types.Int64TensorType,
        "INT32": types.Int32TensorType,
        "BOOL": types.BooleanTensorType,
        "BYTES": types.StringTensorType,
    }
    return kinds[given["datatype"]]([None, given["width"]])


def _thresholds(model: Any) -> list[list[float]]:
    """Features and the numbers at which a model of trees divides them, where it is given them as they are."""
    if hasattr(model, "steps"):
        return _unscaled(_thresholds(model.steps[-1][1]), [step for _, step in model.steps[:-1]])
    found: list[tuple[int, float]] = []
    if hasattr(model, "tree_"):
        inner = model.tree_.children_left != -1
        found += zip(model.tree_.feature[inner].tolist(), model.tree_.threshold[inner].tolist(), strict=True)
    for part in _parts(model):
        if hasattr(part, "tree_") and part.n_features_in_ == model.n_features_in_:
            found += [(int(feature), number) for feature, number in _thresholds(part)]
    for part in np.ravel(np.array(getattr(model, "_predictors", []), object)):
        nodes = part.nodes[(part.nodes["is_leaf"] == 0) & (part.nodes["is_categorical"] == 0)]
        found += zip(nodes["feature_idx"].tolist(), nodes["num_threshold"].tolist(), strict=True)
    return [[feature, number] for feature, number in found if np.isfinite(number)]


def _unscaled(thresholds: list[list[float]], scalers: Sequence[Any]) -> list[list[float]]:
    """The numbers that scalers before a model make its thresholds of; none behind another step."""
    for scaler in reversed(scalers):
        if not hasattr(scaler, "scale_") or not thresholds:
            return []
        rows = np.zeros((len(thresholds), scaler.n_features_in_))
        places = [int(feature) for feature, _ in thresholds]
        rows[range(len(rows)), places] = [number for _, number in thresholds]
        made = scaler.inverse_transform(rows)
        thresholds = [[place, float(row[place])] for place, row in zip(places, made, strict=True)]
    return [[feature, number] for feature, number in thresholds if np.isfinite(number)]


def _parts(model: Any) -> list[Any]:
    """The fitted estimators of which one consists, without those of calibration."""
    rows = [each if isinstance(each, (list, np.ndarray)) else [each] for each in getattr(model, "estimators_", [])]
    return [part for row in rows for part in row]


# What estimators keep of the rows that they were fitted with: rows, and numbers of columns with their spread.
_ROWS = (
    *("_fit_X", "support_vectors_", "cluster_centers_", "centroids_", "subcluster_centers_", "X_train_", "X_fit_"),
    *("theta_", "means_", "quantiles_"),
)


def _usual(model: Any, count: int) -> tuple[list[list[float]], list[list[float]]]:
    """The mean and the spread of the numbers of each column, as far as a fitted model tells, and the columns and
    numbers at which a first step divides them."""
    numbers: list[list[float]] = [[] for _ in range(count)]
    edges: list[list[float]] = []
    waiting = [(model, list(range(count)))]
    while waiting:
        part, places = waiting.pop()
        for each in _first(part):
            for _, inner, columns in getattr(each, "transformers_", []):
                if hasattr(inner, "fit"):
                    waiting.append((inner, [places[at] for at in _places(each, columns)]))
            inside = [*_parts(each), *(one.estimator for one in getattr(each, "calibrated_classifiers_", []))]
            waiting += [(one, places) for one in inside if getattr(one, "n_features_in_", 0) == len(places)]
            for place, found in zip(places, getattr(each, "bin_edges_", []), strict=False):
                numbers[place] += map(float, found)
                edges += [[place, float(number)] for number in found]
            if isinstance(each.get_params().get("threshold") if hasattr(each, "get_params") else None, (int, float)):
                edges += [[place, float(each.threshold)] for place in places]
            for row in _rows_of(each):
                if len(row) == len(places):
                    for place, number in zip(places, np.asarray(row, float).tolist(), strict=True):
                        numbers[place] += [number] if np.isfinite(number) else []
    usual = []
    for found in numbers:
        mean = float(np.mean(found)) if found else 0.0
        usual.append([mean, float(np.std(found)) or (abs(mean) / 10 if mean else 1.0)] if found else [0.0, 1.0])
    return usual, edges


def _rows_of(part: Any) -> list[Any]:
    found = [getattr(part, name, None) for name in _ROWS]
    rows = [row for each in found if isinstance(each, np.ndarray) and each.ndim == 2 for row in each[:1000]]
    mean, spread = getattr(part, "mean_", getattr(part, "center_", None)), getattr(part, "scale_", None)
    if hasattr(part, "explained_variance_"):
        spread = np.sqrt(part.explained_variance_ @ part.components_**2)
    if isinstance(mean, np.ndarray) and isinstance(spread, np.ndarray):
        rows += [mean - spread, mean + spread]
    rows += [getattr(part, name) for name in ("data_min_", "data_max_") if hasattr(part, name)]
    statistics = getattr(part, "statistics_", None)
    if isinstance(statistics, np.ndarray) and statistics.dtype.kind == "f":
        rows.append(statistics)
    return [row for row in rows if np.asarray(row).dtype.kind in "fiu"]


def _needs(model: Any) -> list[str]:
    """Lines of a requirements.txt for the packages whose classes and functions a model is made of, and read with."""
    from importlib.metadata import packages_distributions, version

    packages = packages_distributions()
    read_with = ({"skops"} & sys.modules.keys()) | ({"cloudpickle"} & _NAMED)
    modules = {module.partition(".")[0] for module in _modules(model)} | read_with
    found = {packages[module][0] for module in modules - {"numpy"} if module in packages}
    return sorted(f"{package}=={version(package)}" for package in found)


def _modules(model: Any) -> set[str]:
    return {str(getattr(value, "__module__", None) or type(value).__module__) for value in _inside(model)}


def _inside(model: Any) -> Iterator[Any]:
    """All that a model is made of, in its order."""
    seen, waiting = set(), [model]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (str, bytes, int, float)):
            continue
        seen.add(id(value))
        yield value
        inner: list[Any] = []
        if isinstance(value, Mapping):
            inner = list(value.values())
        elif isinstance(value, (list, tuple, set)):
            inner = list(value)
        elif isinstance(value, np.ndarray):
            inner = value.ravel().tolist() if value.dtype.kind == "O" else []
        elif isinstance(value, partial):
            inner = [value.func, *value.args, *value.keywords.values()]
        elif not isinstance(value, type):
            inner = list(getattr(value, "__dict__", {}).values())
        waiting += reversed(inner)


ANSWERS: Mapping[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
    each.__name__: each
    for each in (onnx, openvino, savedmodel, xgboost, lightgbm, catboost, pickled, boosted, torchscript, package)
}
CONVERSIONS: Mapping[str, Callable[[str, str, Any], dict[str, Any]]] = {
    each.__name__: each for each in (from_catboost, from_xgboost, from_library, from_pickle)
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
        result = []
        for number, file in enumerate(sorted(Path(others[0]).glob("given-*.npz"))):
            with np.load(file, allow_pickle=False) as stored:
                given = dict(stored)
            try:
                answers = ANSWERS[task](path, given)
            except ImportError:
                raise
            except Exception as error:  # frameworks have classes of their own for rows that they do not take
                result.append(f"{type(error).__name__}: {str(error).strip()}".splitlines()[0])
                continue
            result.append("")
            arrays = {name: _without_objects(np.asarray(array)) for name, array in answers.items()}
            # A later numpy would take `allow_pickle`, and this one may be older.
            np.savez(Path(others[0], f"answered-{number}.npz"), **arrays)
    print(f"\n{json.dumps(result)}")


if __name__ == "__main__":
    # The folder of this script has modules with the names of frameworks' files.
    del sys.path[0]
    main(sys.argv[1:])
