"""Serves a TorchServe archive, whose files are in the folder `archive` beside this file, by its own handler.

TorchServe itself is not needed: what handlers are written against is below. A request is a body as TorchServe took it,
in the input `data`, which a handler finds by the names `body` and `data`; parameters of the request are its headers.
The answer is the body of TorchServe's, as text.
Written by `trident import`.
"""

import base64
import enum
import functools
import importlib
import inspect
import io
import itertools
import json
import re
import sys
import time
import types
import uuid
from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

ARCHIVE = Path(__file__).with_name("archive")
VERSION = "0.12.0"

# --- what TorchServe tells a handler


class Context:
    """The model, and the requests of a batch, of which `request_ids` and headers have the place."""

    def __init__(self, manifest, device):
        self.manifest = manifest
        self.model_name = manifest["model"]["modelName"]
        file = manifest["model"].get("configFile")
        self.model_yaml_config = get_yaml_config(str(ARCHIVE / file)) or {} if file else {}
        self.metrics = Metrics(self.model_name)
        self.request_ids, self.stopping_criteria = None, None
        self.headers, self.statuses = [], {}
        self.header_key_sequence_id = "ts_request_sequence_id"
        self.header_key_sequence_start = "ts_request_sequence_start"
        self.header_key_sequence_end = "ts_request_sequence_end"
        self.system_properties = {
            "model_dir": str(ARCHIVE),
            "gpu_id": device.index if device.type == "cuda" else None,
            "batch_size": 64,
            "server_name": "MMS",
            "server_version": VERSION,
            "limit_max_image_pixels": True,
        }

    def begin(self, headers):
        self.headers, self.statuses = headers, {}
        self.request_ids = {place: str(uuid.uuid4()) for place in range(len(headers))}

    def get_request_id(self, idx=0):
        return self.request_ids.get(idx) if self.request_ids else None

    def get_request_header(self, idx, key):
        return self.headers[idx].get(key) if idx < len(self.headers) else None

    def get_all_request_header(self, idx):
        return self.headers[idx]

    def get_sequence_id(self, idx):
        return self.get_request_header(idx, self.header_key_sequence_id)

    def set_response_status(self, code=200, phrase="", idx=0):
        self.statuses[idx] = (code, phrase)

    def set_all_response_status(self, code=200, phrase=""):
        self.statuses = dict.fromkeys(range(len(self.headers)), (code, phrase))

    def get_response_status(self, idx):
        return self.statuses.get(idx, (200, None))

    # An answer here is a tensor, which has no headers.
    def set_response_header(self, idx, key, value):
        pass

    def set_response_content_type(self, idx, value):
        pass

    def get_response_headers(self, idx):
        return {}

    def get_response_content_type(self, idx):
        return None


class Dimension:
    def __init__(self, name, value):
        self.name, self.value = name, value

    def __str__(self):
        return f"{self.name}:{self.value}"


class MetricTypes(enum.Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class CachedMetric:
    """A metric that a handler has made: it has the values of its dimensions with each number."""

    def __init__(self, metrics, name, kind, names):
        self.metrics, self.metric_name, self.kind, self.names = metrics, name, kind, names

    def add_or_update(self, value, dimension_values=(), request_id=""):
        dimensions = [Dimension(name, value) for name, value in zip(self.names, dimension_values)]
        self.metrics.note(self.metric_name, value, self.kind, dimensions)


class Metrics:
    """TorchServe's metrics, on the server's page of metrics: counters, and gauges with the last value."""

    def __init__(self, model):
        self.model, self.families, self.made, self.cached = model, {}, {}, {}

    def note(self, name, value, kind, dimensions):
        kind = MetricTypes.COUNTER if kind is MetricTypes.COUNTER else MetricTypes.GAUGE
        name = re.sub(r"\W", "_", name)
        labels = {re.sub(r"\W", "_", each.name): str(each.value) for each in dimensions or ()}
        labels["model"] = self.model
        key = (name, tuple(sorted(labels.items())))
        if name not in self.families:
            of_kind = getattr(pb_utils.MetricFamily, kind.name)
            self.families[name] = pb_utils.MetricFamily(name=name, description="of a TorchServe handler", kind=of_kind)
        if key not in self.made:
            self.made[key] = self.families[name].Metric(labels=labels)
        metric = self.made[key]
        metric.increment(value) if kind is MetricTypes.COUNTER else metric.set(value)

    def add_counter(self, name, value, idx=None, dimensions=None):
        self.note(name, value, MetricTypes.COUNTER, dimensions)

    def add_time(self, name, value, idx=None, unit="ms", dimensions=None, metric_type=None):
        self.note(name, value, metric_type, dimensions)

    def add_size(self, name, value, idx=None, unit="MB", dimensions=None, metric_type=None):
        self.note(name, value, metric_type, dimensions)

    def add_percent(self, name, value, idx=None, dimensions=None, metric_type=None):
        self.note(name, value, metric_type, dimensions)

    def add_metric(self, name, value, unit=None, idx=None, dimensions=None, metric_type=MetricTypes.COUNTER):
        self.note(name, value, metric_type, dimensions)

    def add_error(self, name, value, dimensions=None):
        pb_utils.Logger.log_error(f"{name}: {value}")

    def add_metric_to_cache(self, metric_name, unit=None, dimension_names=(), metric_type=MetricTypes.COUNTER):
        return self.cached.setdefault(
            (metric_type, metric_name), CachedMetric(self, metric_name, metric_type, list(dimension_names))
        )

    def get_metric(self, metric_name, metric_type=MetricTypes.COUNTER):
        return self.cached[metric_type, metric_name]


# --- TorchServe's functions for handlers


class PredictionException(Exception):
    def __init__(self, message, error_code=500):
        super().__init__(f"{message} : {error_code}")
        self.message, self.error_code = message, error_code


def timed(function):
    """Measures a step, if the handler's configuration has `profile: true`."""

    @functools.wraps(function)
    def measured(self, *args, **kwargs):
        config = getattr(getattr(self, "context", None), "model_yaml_config", None) or {}
        if not config.get("handler", {}).get("profile"):
            return function(self, *args, **kwargs)
        started = time.time()
        result = function(self, *args, **kwargs)
        self.context.metrics.add_time(f"ts_handler_{function.__name__}", (time.time() - started) * 1000)
        return result

    return measured


def list_classes_from_module(module, parent_class=None):
    found = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    return [each for each in found if parent_class is None or issubclass(each, parent_class)]


def load_label_mapping(mapping_file_path):
    """The names of classes by their numbers; None without the file."""
    path = Path(mapping_file_path)
    if not path.is_file():
        return None
    mapping = json.loads(path.read_text())
    if isinstance(mapping.get("object_type_names"), list):
        return {str(number): name for number, name in enumerate(mapping["object_type_names"])}
    return {number: name[-1] if isinstance(name, list) else name for number, name in mapping.items()}


def map_class_to_label(probs, mapping=None, lbl_classes=None):
    classes = lbl_classes or itertools.repeat(range(len(probs[0])))
    return [
        {str(number) if mapping is None else mapping[str(number)]: value for number, value in zip(numbers, values)}
        for numbers, values in zip(classes, probs)
    ]


def get_yaml_config(yaml_file_path):
    import yaml

    return yaml.safe_load(Path(yaml_file_path).read_text())


def check_valid_pt2_backend(backend):
    return backend in torch.compiler.list_backends(exclude_tags=())


def import_class(class_name, module_prefix=None):
    module, _, name = class_name.rpartition(".")
    return getattr(importlib.import_module(".".join(filter(None, (module_prefix, module)))), name)


def send_intermediate_predict_response(*args, **kwargs):
    raise NotImplementedError("answers in parts cannot be sent here: write a decoupled Python model, trident init NAME")


class MicroBatching:
    """A handler's steps in smaller batches, one after the other."""

    def __init__(self, parent_handler, micro_batch_size=1, parallelism=None):
        self.handler, self.micro_batch_size, self.parallelism = parent_handler, micro_batch_size, parallelism or {}

    def handle(self, data):
        handler, found = self.handler, []
        for start in range(0, len(data), self.micro_batch_size):
            part = handler.preprocess(data[start : start + self.micro_batch_size])
            found += handler.postprocess(handler.inference(part))
        return found

    def __call__(self, data, context):
        self.handler.context = context
        return self.handle(data)

    def shutdown(self):
        pass


# --- its handlers


class BaseHandler:
    """The steps that TorchServe's handlers override: initialize, preprocess, inference, postprocess."""

    def __init__(self):
        self.model, self.mapping, self.device, self.context = None, None, None, None
        self.model_pt_path, self.manifest, self.map_location = None, None, None
        self.initialized, self.explain, self.target = False, False, 0
        self.profiler_args = {}

    def initialize(self, context):
        self.context, self.manifest, self.model_yaml_config = context, context.manifest, context.model_yaml_config
        self.map_location = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(self.map_location)
        model = self.manifest["model"]
        if model.get("serializedFile"):
            self.model_pt_path = str(ARCHIVE / model["serializedFile"])
        if model.get("modelFile"):
            self.model = self._load_pickled_model(str(ARCHIVE), model["modelFile"], self.model_pt_path)
        elif self.model_pt_path:
            self.model = self._load_torchscript_model(self.model_pt_path)
        else:
            raise RuntimeError("the archive has no model")
        self.model.to(self.device).eval()
        compiling = self.model_yaml_config.get("pt2", {})
        if compiling and not (isinstance(compiling, dict) and compiling.get("compile", {}).get("enable") is False):
            options = (
                {"backend": compiling} if isinstance(compiling, str) else dict(compiling.get("compile", compiling))
            )
            options.pop("enable", None)
            self.model = torch.compile(self.model, **options)
        self.mapping = load_label_mapping(ARCHIVE / "index_to_name.json")
        self.initialized = True

    def _load_torchscript_model(self, model_pt_path):
        return torch.jit.load(model_pt_path, map_location=self.device)

    def _load_pickled_model(self, model_dir, model_file, model_pt_path):
        module = importlib.import_module(Path(model_file).name.removesuffix(".py"))
        # The last class that it defines is made of those before it.
        classes = [
            each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__
        ]
        model = next(each for each in reversed(classes) if issubclass(each, torch.nn.Module))()
        if model_pt_path:
            # Tensors only: a pickle could run any code.
            model.load_state_dict(torch.load(model_pt_path, map_location=self.device, weights_only=True))
        return model

    @timed
    def preprocess(self, data):
        rows = [row.get("data") or row.get("body") if isinstance(row, dict) else row for row in data]
        return torch.as_tensor(rows, device=self.device)

    @timed
    def inference(self, data, *args, **kwargs):
        with torch.inference_mode():
            return self.model(data.to(self.device) if hasattr(data, "to") else data, *args, **kwargs)

    @timed
    def postprocess(self, data):
        return data.tolist()

    def handle(self, data, context):
        started = time.time()
        self.context = context
        if self._is_describe():
            answers = [self.describe_handle()]
        elif self._is_explain():
            answers = self.explain_handle(self.preprocess(data), data)
        else:
            answers = self.postprocess(self.inference(self.preprocess(data)))
        context.metrics.add_time("HandlerTime", round((time.time() - started) * 1000, 2), None, "ms")
        return answers

    def explain_handle(self, data_preprocess, raw_data):
        row = raw_data[0]
        inputs = row.get("data") or row.get("body") if isinstance(row, dict) else None
        target = row.get("target") or 0 if isinstance(row, dict) else 0
        return self.get_insights(data_preprocess, inputs, target)

    def get_insights(self, tensor_data, inputs, target=0):
        raise NotImplementedError("write `get_insights` into the handler: captum's are not here")

    def _is_explain(self):
        self.explain = self.context.get_request_header(0, "explain") == "True"
        return self.explain

    def _is_describe(self):
        return self.context.get_request_header(0, "describe") == "True"

    def describe_handle(self):
        return None

    def get_device(self):
        return self.device


class VisionHandler(BaseHandler):
    """Pictures, or lists of numbers, each prepared by `image_processing`."""

    @timed
    def preprocess(self, data):
        from PIL import Image

        pictures = []
        for row in data:
            picture = row.get("data") or row.get("body")
            if isinstance(picture, str):
                picture = base64.b64decode(picture)
            if isinstance(picture, (bytes, bytearray)):
                picture = self.image_processing(Image.open(io.BytesIO(picture)))
            pictures.append(torch.as_tensor(picture, dtype=torch.float32))
        return torch.stack(pictures).to(self.device)


class ImageClassifier(VisionHandler):
    """The five likeliest classes of pictures, prepared as those of ImageNet."""

    topk = 5

    def set_max_result_classes(self, topk):
        self.topk = topk

    def get_max_result_classes(self):
        return self.topk

    def image_processing(self, picture):
        """The middle 224 pixels of a picture whose shorter side has 256."""
        picture = picture.convert("RGB")
        scale = 256 / min(picture.size)
        width, height = (round(side * scale) for side in picture.size)
        left, top = (width - 224) // 2, (height - 224) // 2
        picture = picture.resize((width, height), 2).crop((left, top, left + 224, top + 224))
        return ((np.asarray(picture, np.float32) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).transpose(
            2, 0, 1
        )

    @timed
    def postprocess(self, data):
        scores = torch.softmax(data, dim=1)
        likeliest = torch.topk(scores, min(self.topk, scores.shape[1]), dim=1)
        mapping = self.mapping and {
            str(index): self.mapping.get(str(index), str(index)) for index in range(data.shape[1])
        }
        return map_class_to_label(likeliest.values.tolist(), mapping, likeliest.indices.tolist())


# --- the place of all that: the modules that handlers import

_MODULES = {
    "ts": {"__version__": VERSION},
    "ts.context": {"Context": Context},
    "ts.handler_utils": {},
    "ts.handler_utils.micro_batching": {"MicroBatching": MicroBatching},
    "ts.handler_utils.timer": {"timed": timed},
    "ts.handler_utils.utils": {
        "import_class": import_class,
        "send_intermediate_predict_response": send_intermediate_predict_response,
    },
    "ts.metrics": {},
    "ts.metrics.dimension": {"Dimension": Dimension},
    "ts.metrics.metric_type_enum": {"MetricTypes": MetricTypes},
    "ts.protocol": {},
    "ts.protocol.otf_message_handler": {"send_intermediate_predict_response": send_intermediate_predict_response},
    "ts.torch_handler": {},
    "ts.torch_handler.base_handler": {"BaseHandler": BaseHandler},
    "ts.torch_handler.image_classifier": {"ImageClassifier": ImageClassifier},
    "ts.torch_handler.vision_handler": {"VisionHandler": VisionHandler},
    "ts.utils": {},
    "ts.utils.util": {
        "CLEANUP_REGEX": re.compile("<.*?>|&([a-z0-9]+|#[0-9]{1,6}|#x[0-9a-f]{1,6});"),
        "PredictionException": PredictionException,
        "check_valid_pt2_backend": check_valid_pt2_backend,
        "get_yaml_config": get_yaml_config,
        "list_classes_from_module": list_classes_from_module,
        "load_label_mapping": load_label_mapping,
        "map_class_to_label": map_class_to_label,
    },
}


class Missing:
    """Names the modules of TorchServe that are not here."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("ts."):
            raise ModuleNotFoundError(f"{name} is a part of TorchServe that is not here: port the handler", name=name)


def stand_in_for_torchserve():
    """Give handlers the modules of TorchServe that they import."""
    for name, members in _MODULES.items():
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(members)
        sys.modules[name] = module
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, module)
    sys.meta_path.insert(0, Missing)


BUILT_IN = {"base_handler": BaseHandler, "image_classifier": ImageClassifier}


def is_built_in(handler):
    return handler.partition(":")[0].removesuffix(".py") in BUILT_IN


def service_of(name, context):
    name, _, function = name.partition(":")
    name = name.removesuffix(".py")
    if name in BUILT_IN:
        made = BUILT_IN[name]()
    else:
        module = importlib.import_module(name)
        entry = getattr(module, function or "handle", None)
        if entry is not None:
            # TorchServe calls it without data when it loads the model.
            entry(None, context)
            return entry
        classes = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == name]
        made = next(each for each in reversed(classes) if hasattr(each, "handle"))()
    made.initialize(context)
    return made.handle


class TritonPythonModel:
    def initialize(self, args):
        stand_in_for_torchserve()
        manifest = json.loads((ARCHIVE / "MAR-INF" / "MANIFEST.json").read_text())
        if not is_built_in(manifest["model"]["handler"]) or manifest["model"].get("modelFile"):
            # The author's code imports what lies beside it. Otherwise nothing in the archive is a module.
            sys.path.insert(0, str(ARCHIVE))
        self.context = Context(manifest, torch.device("cuda:0" if torch.cuda.is_available() else "cpu"))
        self.handle = service_of(manifest["model"]["handler"], self.context)

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "data").as_numpy() for request in requests]
        headers = [json.loads(request.parameters()) for request in requests]
        bodies = [body_of(body) for rows in inputs for body in rows.reshape(-1)]
        self.context.begin([header for header, rows in zip(headers, inputs) for _ in range(rows.size)])
        # A body has the name `body`, and that of its field where it was sent in a form.
        data = [{"data": body, "body": body} for body in bodies]
        try:
            answers = list(self.handle(data, self.context))
        except PredictionException as error:
            raise pb_utils.TritonModelException(error.message) from error
        if len(answers) != len(bodies):
            raise ValueError(f"the handler gave {len(answers)} answers to {len(bodies)} requests")
        texts = [answer if isinstance(answer, (str, bytes)) else json.dumps(answer) for answer in answers]
        responses, first = [], 0
        for rows in inputs:
            statuses = [self.context.get_response_status(place) for place in range(first, first + rows.size)]
            array = np.array(texts[first : first + rows.size], object).reshape(rows.shape)
            first += rows.size
            code, phrase = max(statuses, key=lambda status: status[0])
            if code >= 400:
                kind = pb_utils.TritonError.INVALID_ARG if code < 500 else pb_utils.TritonError.INTERNAL
                error = pb_utils.TritonError(phrase or f"the handler answers with the status {code}", kind)
                responses.append(pb_utils.InferenceResponse(error=error))
            else:
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("prediction", array)]))
        return responses


def body_of(content):
    """JSON as what it says, as TorchServe reads a body of that type; anything else as bytes."""
    try:
        return json.loads(content)
    except ValueError:
        return content
