"""Serves a TorchServe archive, whose files are in the folder `archive` beside this file, by its own handler.

TorchServe itself is not needed: `BaseHandler` and the context, which handlers are written against, are below. A request
is a body as TorchServe took it, in the input `data`; the answer is the body of TorchServe's, as text.
Written by `trident import`.
"""

import base64
import importlib
import inspect
import io
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

ARCHIVE = Path(__file__).with_name("archive")


class Context:
    """What TorchServe tells a handler of its place."""

    def __init__(self, manifest, device):
        self.manifest = manifest
        self.model_name = manifest["model"]["modelName"]
        self.model_yaml_config = {}
        self.metrics = None
        self.system_properties = {
            "model_dir": str(ARCHIVE),
            "gpu_id": device.index if device.type == "cuda" else None,
            "batch_size": 64,
        }

    def get_request_header(self, index, name):
        return None

    def get_all_request_header(self, index):
        return {}

    def set_response_status(self, **status):
        if status.get("code", 200) >= 400:
            raise ValueError(status.get("phrase") or f"status {status['code']}")


class BaseHandler:
    """The steps that TorchServe's handlers override: initialize, preprocess, inference, postprocess."""

    def __init__(self):
        self.model = None
        self.mapping = None
        self.initialized = False

    def initialize(self, context):
        self.context, self.manifest = context, context.manifest
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.map_location = self.device
        model = self.manifest["model"]
        file = ARCHIVE / model["serializedFile"] if model.get("serializedFile") else None
        if model.get("modelFile"):
            module = importlib.import_module(model["modelFile"].removesuffix(".py"))
            self.model = next(each for each in own_classes(module) if issubclass(each, torch.nn.Module))()
            if file:
                # Tensors only: a pickle could run any code.
                self.model.load_state_dict(torch.load(file, map_location=self.device, weights_only=True))
        else:
            self.model = torch.jit.load(str(file), map_location=self.device)
        self.model.to(self.device).eval()
        names = ARCHIVE / "index_to_name.json"
        self.mapping = json.loads(names.read_text()) if names.is_file() else None
        self.initialized = True

    def preprocess(self, data):
        rows = [row.get("data") or row.get("body") if isinstance(row, dict) else row for row in data]
        return torch.as_tensor(rows, device=self.device)

    def inference(self, data, *args, **kwargs):
        with torch.inference_mode():
            return self.model(data.to(self.device) if hasattr(data, "to") else data, *args, **kwargs)

    def postprocess(self, data):
        return data.tolist()

    def handle(self, data, context):
        self.context = context
        return self.postprocess(self.inference(self.preprocess(data)))


class ImageClassifier(BaseHandler):
    """The five likeliest classes of pictures, prepared as those of ImageNet."""

    topk = 5

    def preprocess(self, data):
        from PIL import Image

        pictures = []
        for row in data:
            picture = row.get("data") or row.get("body")
            if isinstance(picture, str):
                picture = base64.b64decode(picture)
            if isinstance(picture, (bytes, bytearray)):
                picture = np.asarray(self.cut(Image.open(io.BytesIO(picture)).convert("RGB")), np.float32) / 255
                picture = ((picture - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).transpose(2, 0, 1)
            pictures.append(torch.as_tensor(picture, dtype=torch.float32))
        return torch.stack(pictures).to(self.device)

    @staticmethod
    def cut(picture):
        """The middle 224 pixels of a picture whose shorter side has 256."""
        scale = 256 / min(picture.size)
        width, height = (round(side * scale) for side in picture.size)
        left, top = (width - 224) // 2, (height - 224) // 2
        return picture.resize((width, height), 2).crop((left, top, left + 224, top + 224))

    def postprocess(self, data):
        scores = torch.softmax(data, dim=1)
        likeliest = torch.topk(scores, min(self.topk, scores.shape[1]), dim=1)
        return [
            {self.named(index): value for index, value in zip(indices, values)}
            for indices, values in zip(likeliest.indices.tolist(), likeliest.values.tolist())
        ]

    def named(self, index):
        name = self.mapping.get(str(index), str(index)) if self.mapping else str(index)
        return name[-1] if isinstance(name, list) else name


def own_classes(module):
    """The classes that a module defines, the last one first: it is made of those before it."""
    classes = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]
    return reversed(classes)


def stand_in_for_torchserve():
    """Give handlers the modules of TorchServe that they import."""
    classes = {"base_handler": BaseHandler, "image_classifier": ImageClassifier, "vision_handler": ImageClassifier}
    names = {"base_handler": "BaseHandler", "image_classifier": "ImageClassifier", "vision_handler": "VisionHandler"}
    for package in ("ts", "ts.torch_handler"):
        sys.modules[package] = types.ModuleType(package)
    for module, found in classes.items():
        made = types.ModuleType(f"ts.torch_handler.{module}")
        setattr(made, names[module], found)
        sys.modules[made.__name__] = made
        setattr(sys.modules["ts.torch_handler"], module, made)


BUILT_IN = {"base_handler": BaseHandler, "image_classifier": ImageClassifier}


def is_built_in(handler):
    return handler.partition(":")[0].removesuffix(".py") in BUILT_IN


def service_of(name, context):
    """The function `handle(data, context)` of a handler: a function of its module, or the method of its class."""
    name, _, function = name.partition(":")
    name = name.removesuffix(".py")
    if name in BUILT_IN:
        made = BUILT_IN[name]()
    else:
        module = importlib.import_module(name)
        if hasattr(module, function or "handle"):
            return getattr(module, function or "handle")
        made = next(each for each in own_classes(module) if hasattr(each, "handle"))()
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
        bodies = [{"data": body_of(body)} for rows in inputs for body in rows.reshape(-1)]
        answers = list(self.handle(bodies, self.context))
        if len(answers) != len(bodies):
            raise ValueError(f"the handler gave {len(answers)} answers to {len(bodies)} requests")
        texts = iter([answer if isinstance(answer, (str, bytes)) else json.dumps(answer) for answer in answers])
        responses = []
        for rows in inputs:
            array = np.array([next(texts) for _ in range(rows.size)], object).reshape(rows.shape)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("prediction", array)]))
        return responses


def body_of(content):
    """JSON as what it says, as TorchServe reads a body of that type; anything else as bytes."""
    try:
        return json.loads(content)
    except ValueError:
        return content
