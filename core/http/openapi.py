"""The OpenAPI 3.1 documents of a server and of a model, made from the route table when they are asked for.

The route table gives the paths, methods and groups; `OPERATIONS` says of each route what its bodies are. The document
of a model has the routes of that model alone, with its own inputs and outputs, and a request that works.
Source: docs/http.md; OpenAPI Specification 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trident.core.config.spec import ModelSpec
from trident.core.frontend.request import version_number
from trident.core.http.front_end import HttpOptions
from trident.core.http.reply import JSON, TEXT, Environ, Reply, json_reply
from trident.core.http.sample_request import FORMS, Sample, make_sample, request_document
from trident.core.http.text_routes import NOT_SUPPORTED
from trident.core.inference.tensors import DATATYPES, NUMBER_CODES, Shape

if TYPE_CHECKING:
    from trident.core.http.application import V2Application
    from trident.core.http.routes import Route

Schema = dict[str, Any]
Content = Mapping[str, Schema]
"""Schemas by media type."""

OCTETS: Final = "application/octet-stream"
EVENTS: Final = "text/event-stream"
OPENAI_ERROR: Final = "OpenAiError"


_NO_BODY: Final[Content] = MappingProxyType({})


class Operation(NamedTuple):
    """What the methods of a route do. `answer` is the body of the `status`, `body` that of a POST."""

    summary: str
    answer: Content = _NO_BODY
    body: Content = _NO_BODY
    needs_body: bool = True
    parameters: tuple[Schema, ...] = ()
    status: HTTPStatus = HTTPStatus.OK
    error: str = "Error"


# --- schemas


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None, **more: Any) -> Schema:
    schema: Schema = {"type": "object", "properties": {**required, **(optional or {})}, **more}
    return {**schema, "required": list(required)} if required else schema


def listing(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _query(name: str, text: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "description": text, "schema": schema}


TEXT_VALUE: Final[Schema] = {"type": "string"}
ANY_OBJECT: Final[Schema] = {"type": "object"}
BYTES_BODY: Final[Schema] = {}
NUMBER: Final[Schema] = {"type": "integer", "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}
_CUTTING: Mapping[str, Schema] = {
    "truncate": FLAG,
    "truncation_direction": {"type": "string", "enum": ["Left", "Right", "left", "right"]},
}
_SHAPE = listing({"type": "integer", "minimum": -1})
_DATATYPE: Schema = {"type": "string", "enum": [each.name for each in DATATYPES]}
_DURATION = record({"count": NUMBER, "ns": NUMBER})
_MEMORY_USAGE = record({"type": TEXT_VALUE, "id": NUMBER, "byte_size": NUMBER})
_VALUES: Schema = {"description": "row by row, flat or nested", "type": "array", "items": {}}
_NAME_AND_DATATYPE = {"name": TEXT_VALUE, "datatype": _DATATYPE}
_INPUT_LENGTH: Schema = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "description": "The bytes of the JSON in front of binary tensors",
    "schema": {"type": "integer", "minimum": 0, "maximum": 2147483647},
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": record({"error": TEXT_VALUE}, {"hint": TEXT_VALUE}),
    "OpenAiError": record({"error": record({"message": TEXT_VALUE, "type": TEXT_VALUE})}),
    "Completion": record({"id": TEXT_VALUE, "object": TEXT_VALUE, "created": NUMBER, "choices": listing(ANY_OBJECT)}),
    "Texts": {"oneOf": [TEXT_VALUE, listing(TEXT_VALUE, minItems=1)]},
    "OpenAiModel": record(
        {"id": TEXT_VALUE, "object": TEXT_VALUE, "created": NUMBER, "owned_by": TEXT_VALUE, "name": TEXT_VALUE}
    ),
    "ServerMetadata": record({"name": TEXT_VALUE, "version": TEXT_VALUE, "extensions": listing(TEXT_VALUE)}),
    "ModelMetadata": record(
        {
            "name": TEXT_VALUE,
            "versions": listing(TEXT_VALUE),
            "platform": TEXT_VALUE,
            "inputs": listing(record({**_NAME_AND_DATATYPE, "shape": _SHAPE})),
            "outputs": listing(record({**_NAME_AND_DATATYPE, "shape": _SHAPE})),
        }
    ),
    "ModelConfig": {**ANY_OBJECT, "description": "Triton's ModelConfig, in the names of its protobuf message"},
    "Readiness": record({"phase": TEXT_VALUE, "loaded": NUMBER, "total": NUMBER}, {"ready": {"type": "boolean"}}),
    "InferInput": record(
        {**_NAME_AND_DATATYPE, "shape": listing(NUMBER)}, {"data": _VALUES, "parameters": ref("TensorParameters")}
    ),
    "TensorParameters": record(
        {},
        {
            "binary_data_size": {**NUMBER, "description": "the bytes of an input behind the JSON"},
            "binary_data": {"type": "boolean", "description": "whether an output follows the JSON"},
            "classification": {**NUMBER, "description": "answer with this many of the largest values, as text"},
            "shared_memory_region": TEXT_VALUE,
            "shared_memory_byte_size": NUMBER,
            "shared_memory_offset": NUMBER,
        },
    ),
    "InferParameters": record(
        {},
        {
            "sequence_id": {"type": ["integer", "string"]},
            "sequence_start": {"type": "boolean"},
            "sequence_end": {"type": "boolean"},
            "priority": NUMBER,
            "timeout": {**NUMBER, "description": "microseconds"},
            "binary_data_output": {"type": "boolean"},
        },
    ),
    "RequestedOutput": record({"name": TEXT_VALUE}, {"parameters": ref("TensorParameters")}),
    "InferRequest": record(
        {"inputs": listing(ref("InferInput"))},
        {
            "id": TEXT_VALUE,
            "parameters": ref("InferParameters"),
            "outputs": listing(ref("RequestedOutput")),
        },
    ),
    "InferOutput": record(
        {**_NAME_AND_DATATYPE, "shape": listing(NUMBER)}, {"data": _VALUES, "parameters": ANY_OBJECT}
    ),
    "InferResponse": record(
        {"model_name": TEXT_VALUE, "model_version": TEXT_VALUE, "outputs": listing(ref("InferOutput"))},
        {"id": TEXT_VALUE, "parameters": ANY_OBJECT},
    ),
    "GenerateRequest": {**ANY_OBJECT, "description": "a value by the name of an input; all others are parameters"},
    "GenerateResponse": record({"model_name": TEXT_VALUE, "model_version": TEXT_VALUE}),
    "Statistics": record(
        {
            "model_stats": listing(
                record(
                    {
                        "name": TEXT_VALUE,
                        "version": TEXT_VALUE,
                        "last_inference": {**NUMBER, "description": "milliseconds since 1970"},
                        "inference_count": NUMBER,
                        "execution_count": NUMBER,
                    },
                    {
                        "inference_stats": {**ANY_OBJECT, "additionalProperties": _DURATION},
                        "batch_stats": listing(ANY_OBJECT),
                    },
                )
            )
        }
    ),
    "Slowest": record(
        {
            "model_name": TEXT_VALUE,
            "versions": listing(
                record({"version": TEXT_VALUE, "slowest": listing(ANY_OBJECT), "failed": listing(ANY_OBJECT)})
            ),
        }
    ),
    "SampleRequest": record(
        {
            "model": TEXT_VALUE,
            "version": TEXT_VALUE,
            "path": TEXT_VALUE,
            "inputs": listing(record({**_NAME_AND_DATATYPE, "shape": listing(NUMBER), "value": {}})),
            "parameters": ANY_OBJECT,
            "headers": listing(TEXT_VALUE),
            "forms": listing(
                record({"name": TEXT_VALUE, "title": TEXT_VALUE, "language": TEXT_VALUE}, {"unavailable": TEXT_VALUE})
            ),
        }
    ),
    "Index": listing(
        record(
            {"name": TEXT_VALUE},
            {"version": TEXT_VALUE, "state": TEXT_VALUE, "reason": TEXT_VALUE, "memory_usage": listing(_MEMORY_USAGE)},
        )
    ),
    "LoadRequest": record(
        {},
        {
            "parameters": {
                "type": "object",
                "properties": {"config": {**TEXT_VALUE, "description": "a configuration as JSON"}},
                "patternProperties": {"^file:": {**TEXT_VALUE, "contentEncoding": "base64"}},
                "additionalProperties": False,
            }
        },
    ),
    "UnloadRequest": record({}, {"parameters": record({}, {"unload_dependents": {"type": "boolean"}})}),
    "Regions": listing(record({"name": TEXT_VALUE})),
    "RegisterRequest": record(
        {},
        {
            "key": {**TEXT_VALUE, "description": "the name of a system region"},
            "offset": NUMBER,
            "byte_size": NUMBER,
            "raw_handle": record({"b64": {**TEXT_VALUE, "contentEncoding": "base64"}}),
            "device_id": NUMBER,
        },
    ),
    "TraceSettings": record(
        {},
        {
            "trace_level": {"type": ["array", "null"], "items": TEXT_VALUE},
            **{
                f"{name}": {"type": ["string", "null"]}
                for name in ("trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode")
            },
        },
    ),
    "LogSettings": record(
        {},
        {
            "log_file": {"type": ["string", "null"]},
            **{name: {"type": ["boolean", "null"]} for name in ("log_info", "log_warning", "log_error")},
            "log_verbose_level": {"type": ["integer", "null"], "minimum": 0},
            "log_format": {"type": ["string", "null"]},
        },
    ),
    "OpenAPI": record({"openapi": TEXT_VALUE, "info": ANY_OBJECT, "paths": ANY_OBJECT}),
}


def _json(name: str) -> Content:
    return {JSON: ref(name)}


_INFER_BODY: Content = {JSON: ref("InferRequest"), OCTETS: BYTES_BODY}
_INFER_ANSWER: Content = {JSON: ref("InferResponse"), OCTETS: BYTES_BODY}
_VERBOSE = _query("verbose", "Have a body with the progress also when ready", {"type": "string"})
_SAMPLE_QUERY = (
    _query("form", "Answer with the text of a request", {"type": "string", "enum": list(FORMS)}),
    {
        **_query("shape", "The shape of an input, as INPUT:1,16", listing(TEXT_VALUE)),
        "style": "form",
        "explode": True,
    },
    _query("url", "The address of the server", {"type": "string", "format": "uri"}),
)
_CHANGED = "; a POST changes those that it has"

# By the names of the routes.
OPERATIONS: Final[dict[str, Operation]] = {
    "infer": Operation("Run the model", _INFER_ANSWER, _INFER_BODY, parameters=(_INPUT_LENGTH,)),
    "generate": Operation(
        "Run a model that answers once, with one flat object", _json("GenerateResponse"), _json("GenerateRequest")
    ),
    "generate_stream": Operation(
        "Run the model, with an event for each answer", {EVENTS: {}}, _json("GenerateRequest")
    ),
    "embeddings": Operation(
        "The vectors of texts, as OpenAI has it",
        {JSON: record({"object": TEXT_VALUE, "data": listing(ANY_OBJECT), "model": TEXT_VALUE, "usage": ANY_OBJECT})},
        {
            JSON: record(
                {"model": TEXT_VALUE, "input": ref("Texts")},
                {"encoding_format": {"enum": ["float", "base64"]}, "dimensions": {"type": "integer", "minimum": 1}},
            )
        },
        error=OPENAI_ERROR,
    ),
    "completions": Operation(
        "The text that a model generates, as OpenAI has it",
        {JSON: ref("Completion"), EVENTS: {}},
        {JSON: record({"model": TEXT_VALUE, "prompt": {"type": ["string", "array"]}}, {"stream": {"type": "boolean"}})},
        error=OPENAI_ERROR,
    ),
    "chat_completions": Operation(
        "The answer of a model to messages, as OpenAI has it",
        {JSON: ref("Completion"), EVENTS: {}},
        {JSON: record({"model": TEXT_VALUE, "messages": listing(ANY_OBJECT)}, {"stream": {"type": "boolean"}})},
        error=OPENAI_ERROR,
    ),
    "v1_models": Operation(
        "The models that are ready, or one of them, as OpenAI and KServe have it",
        {JSON: {"anyOf": [record({"object": TEXT_VALUE, "data": listing(ref("OpenAiModel"))}), ref("OpenAiModel")]}},
        error=OPENAI_ERROR,
    ),
    "v1_predict": Operation(
        "Run the model on instances, as KServe's v1 protocol and TensorFlow Serving have it",
        {JSON: {"anyOf": [record({"predictions": listing({})}), record({"outputs": {}})]}},
        {
            JSON: {
                "anyOf": [
                    record({"instances": listing({})}, {"parameters": ANY_OBJECT}),
                    record({"inputs": {}}, {"parameters": ANY_OBJECT}),
                ]
            }
        },
    ),
    "v2_rerank": Operation(
        "Documents in the order of their relevance for a query, as Cohere has it",
        {JSON: record({"results": listing(ANY_OBJECT), "usage": ANY_OBJECT})},
        {JSON: record({"query": TEXT_VALUE, "documents": listing({}, minItems=1)}, {"model": TEXT_VALUE})},
    ),
    "v1_rerank": Operation(
        "Documents in the order of their relevance for a query",
        {JSON: record({"model": TEXT_VALUE, "results": listing(ANY_OBJECT), "usage": ANY_OBJECT})},
        {
            JSON: record(
                {"query": TEXT_VALUE, "documents": listing(TEXT_VALUE, minItems=1)},
                {
                    "model": TEXT_VALUE,
                    "top_n": {"type": "integer", "minimum": 1},
                    "return_documents": {"type": "boolean"},
                },
            )
        },
        error=OPENAI_ERROR,
    ),
    "text_embed": Operation(
        "The vectors of texts",
        {JSON: listing(listing({"type": "number"}))},
        {
            JSON: record(
                {"inputs": ref("Texts")},
                {"model": TEXT_VALUE, "normalize": FLAG, "dimensions": NUMBER, "prompt_name": TEXT_VALUE, **_CUTTING},
            )
        },
    ),
    "text_similarity": Operation(
        "The cosines of sentences and a source sentence",
        {JSON: listing({"type": "number"})},
        {
            JSON: record(
                {"inputs": record({"source_sentence": TEXT_VALUE, "sentences": listing(TEXT_VALUE, minItems=1)})},
                {"model": TEXT_VALUE, "parameters": ANY_OBJECT},
            )
        },
    ),
    "text_rerank": Operation(
        "The indices and scores of texts, the best first",
        {JSON: listing(record({"index": NUMBER, "score": {"type": "number"}}, {"text": TEXT_VALUE}))},
        {
            JSON: record(
                {"query": TEXT_VALUE, "texts": listing(TEXT_VALUE, minItems=1)},
                {"model": TEXT_VALUE, "return_text": FLAG, "raw_scores": FLAG, **_CUTTING},
            )
        },
    ),
    "text_predict": Operation(
        "The labels and scores of texts, the best first",
        {JSON: listing({})},
        {JSON: record({"inputs": ref("Texts")}, {"model": TEXT_VALUE, "raw_scores": FLAG, **_CUTTING})},
    ),
    "text_root": Operation(
        "What huggingface_hub's client asks: the only text model answers",
        {JSON: {}},
        {JSON: record({}, {"inputs": {}, "model": TEXT_VALUE, "parameters": ANY_OBJECT})},
    ),
    "text_info": Operation("The only text model, as text-embeddings-inference describes its own", {JSON: ANY_OBJECT}),
    **{f"text_{name}": Operation("Not supported", {JSON: {}}) for name in NOT_SUPPORTED},
    "live": Operation("Whether the process serves", {TEXT: TEXT_VALUE, JSON: ANY_OBJECT}),
    "ready": Operation(
        "Whether every model is ready", {TEXT: TEXT_VALUE, JSON: ref("Readiness")}, parameters=(_VERBOSE,)
    ),
    "model_ready": Operation("Whether the model is ready", {TEXT: TEXT_VALUE, JSON: ANY_OBJECT}),
    "server_metadata": Operation("Name, version and extensions of the server", _json("ServerMetadata")),
    "model_metadata": Operation("Versions, inputs and outputs of the model", _json("ModelMetadata")),
    "sample_request": Operation(
        "A request to copy", {JSON: ref("SampleRequest"), TEXT: TEXT_VALUE}, parameters=_SAMPLE_QUERY
    ),
    "model_config": Operation("The configuration in force", _json("ModelConfig")),
    "statistics": Operation("Counts and durations since the start", _json("Statistics")),
    "stream": Operation(
        "Requests and answers on a WebSocket",
        parameters=tuple(
            _query(name, f"What {messages} are", {"type": "string", "enum": ["v2", "chunk"], "default": "v2"})
            for name, messages in (
                ("text", "the client's text messages"),
                ("binary", "the client's binary messages"),
                ("answers", "the server's messages"),
            )
        ),
        status=HTTPStatus.SWITCHING_PROTOCOLS,
    ),
    "slowest": Operation("The slowest and the failed requests of the last hour", _json("Slowest")),
    "repository_index": Operation(
        "The models and their states",
        _json("Index"),
        {JSON: record({}, {"ready": {"type": "boolean"}})},
        needs_body=False,
    ),
    "load": Operation("Load the model, or load it again", _NO_BODY, _json("LoadRequest"), needs_body=False),
    "unload": Operation("Unload the model", _NO_BODY, _json("UnloadRequest"), needs_body=False),
    "memory_status": Operation("The registered regions of shared memory", _json("Regions")),
    "memory_register": Operation("Register a region of shared memory", _NO_BODY, _json("RegisterRequest")),
    "memory_unregister": Operation("Remove a region, or all of the kind"),
    "trace": Operation("The trace settings" + _CHANGED, _json("TraceSettings"), _json("TraceSettings"), False),
    "model_trace": Operation(
        "The trace settings of the model" + _CHANGED, _json("TraceSettings"), _json("TraceSettings"), False
    ),
    "logging": Operation("The log settings" + _CHANGED, _json("LogSettings"), _json("LogSettings"), False),
    "openapi": Operation("This document", _json("OpenAPI")),
    "model_openapi": Operation("The document of the model", _json("OpenAPI")),
}


# --- the document


def undescribed(route: Route) -> Operation:
    """What is known of a route of another package's platform."""
    body = {OCTETS: BYTES_BODY}
    return Operation(f"The route {route.name} of the platform", answer=body, body=body, needs_body=False)


def openapi_document(
    title: str,
    version: str,
    routes: Iterable[tuple[Route, Operation]],
    *,
    base: str = "/",
    options: HttpOptions | None = None,
    rules: Callable[[Route], Iterable[str]] = lambda route: route.rules,
) -> dict[str, Any]:
    """The document of `routes`. `base` is where the paths begin, as a URL that may
    be relative to the document's own. `rules` are those of a route that are shown."""
    paths: dict[str, Any] = {}
    schemes: dict[str, Any] = {}
    for route, operation in routes:
        for rule in rules(route):
            if rule.endswith("/") and rule[:-1] in route.rules:
                continue  # another spelling
            path, parameters = _template(rule)
            item = paths.setdefault(path, {"parameters": parameters} if parameters else {})
            for method in sorted(route.methods):
                made = _operation(route, rule, method, operation)
                if security := _security(route.group, options, schemes):
                    made["security"] = [security]
                item[method.lower()] = made
    components: dict[str, Any] = {"schemas": SCHEMAS, **({"securitySchemes": schemes} if schemes else {})}
    info = {"title": title, "version": version}
    return {"openapi": "3.1.0", "info": info, "servers": [{"url": base}], "paths": paths, "components": components}


_CAPTURED = re.compile(r"<(?:(\w+)(?:\((.*?)\))?:)?(\w+)>")


def _template(rule: str) -> tuple[str, list[Schema]]:
    """The path of one of Werkzeug's rules, and its parameters."""
    parameters = []
    for kind, words, name in _CAPTURED.findall(rule):
        schema: Schema = {"type": "string", "minLength": 1}
        if kind == "digits":
            schema = {"type": "string", "pattern": "^[0-9]{1,19}$"}
        elif words:
            schema = {"type": "string", "enum": words.split(",")}
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    return _CAPTURED.sub(r"{\3}", rule), parameters


def _operation(route: Route, rule: str, method: str, operation: Operation) -> dict[str, Any]:
    found = [name for _, _, name in _CAPTURED.findall(rule)]
    identity = route.name if rule == route.rules[0] else "_of_".join([route.name, *found[-1:]])
    made: dict[str, Any] = {
        "operationId": identity if len(route.methods) == 1 else f"{method.lower()}_{identity}",
        "summary": operation.summary,
        "tags": [route.group or "platform"],
        "responses": {
            str(operation.status.value): {"description": operation.status.phrase, **_content(operation.answer)},
            "default": {"description": "An error", **_content({JSON: ref(operation.error), TEXT: TEXT_VALUE})},
        },
    }
    if operation.parameters:
        made["parameters"] = list(operation.parameters)
    if operation.body and method == "POST":
        made["requestBody"] = {"required": operation.needs_body, **_content(operation.body)}
    return made


def _content(content: Content) -> dict[str, Any]:
    return {"content": {kind: {"schema": schema} for kind, schema in content.items()}} if content else {}


def _security(group: str, options: HttpOptions | None, schemes: dict[str, Any]) -> dict[str, list[str]]:
    """What a caller of `group` must show, whose description is added to `schemes`."""
    needed: dict[str, list[str]] = {}
    if options is None:
        return needed
    if options.tokens is not None and options.tokens.requires(group):
        schemes["token"] = {"type": "http", "scheme": "bearer"}
        needed["token"] = []
    for each in options.restricted:
        if group in each.groups:
            name = "header-" + re.sub(r"[^A-Za-z0-9._-]", "_", each.header)
            schemes[name] = {"type": "apiKey", "in": "header", "name": each.header}
            needed[name] = []
    return needed


# --- the document of a model

_NESTED: Schema = {"type": "array"}
_OF_MODEL = "/v2/models/<model>"
_OF_VERSION = f"{_OF_MODEL}/versions/<digits:version>"


def model_document(application: V2Application, spec: ModelSpec, version: str, base: str) -> dict[str, Any]:
    """The routes of one model, with its name in their paths and its own tensors in their bodies."""
    sample = make_sample(spec, version)
    start = _OF_VERSION if version else _OF_MODEL

    def rules(route: Route) -> list[str]:
        tails = [rule for rule in route.rules if rule.startswith(start)]
        return [rule for rule in tails if version or not rule.startswith(_OF_VERSION)]

    left_out = {"generate", "infer"} if spec.decoupled else set()
    routes = [
        (route, operation)
        for route, operation in application.documented_routes()
        if rules(route) and route.name not in left_out
    ]
    document = openapi_document(
        spec.name, str(spec.version), routes, base=base, options=application.options, rules=rules
    )
    paths = {}
    for path, item in document["paths"].items():
        item.pop("parameters", None)
        named = sample.path + path.removeprefix(_template(start)[0])
        paths[named] = item
    document["paths"] = paths
    document["components"] = {**document["components"], "schemas": {**SCHEMAS, **_schemas(spec)}}
    for tail, kind in (("/infer", JSON), ("/generate", JSON), ("/generate_stream", JSON)):
        operation = paths.get(sample.path + tail, {}).get("post")
        if operation is not None and (example := _example(sample, tail)) is not None:
            operation["requestBody"]["content"][kind]["example"] = example
    return document


_LARGEST_EXAMPLE = 4096


def _example(sample: Sample, tail: str) -> object:
    """None for a model whose requests are too long, or have no form in JSON."""
    if sum(each.count for each in sample.inputs) > _LARGEST_EXAMPLE or sample.needs_binary:
        return None
    if tail == "/infer":
        return request_document(sample)
    return {each.name: [each.value] * each.count if each.count > 1 else each.value for each in sample.inputs}


def _schemas(spec: ModelSpec) -> dict[str, Schema]:
    inputs = [
        _tensor_schema(each.name, each.datatype.name, _dims(each.dims, spec, shared=each.is_shape_tensor))
        for each in spec.inputs.values()
    ]
    outputs = [_tensor_schema(each.name, each.datatype.name, _dims(each.dims, spec)) for each in spec.outputs.values()]
    requested = [
        record({"name": {"const": each.name}}, {"parameters": _requested_parameters(each.labels)})
        for each in spec.outputs.values()
    ]
    fewest = sum(not each.optional for each in spec.inputs.values())
    request = dict(SCHEMAS["InferRequest"])
    request["properties"] = {
        **request["properties"],
        "inputs": listing(ref("InferInput"), minItems=fewest, maxItems=len(inputs)),
    }
    values = {name: _value_schema(each.datatype.name) for name, each in spec.inputs.items()}
    needed = [each.name for each in spec.inputs.values() if not each.optional]
    flat = {name: {"anyOf": [value, listing(value)]} for name, value in values.items()}
    found = {
        "InferInput": _one_of(inputs),
        "InferRequest": request,
        # An answer may also have an output as classes.
        "InferOutput": {"anyOf": [*outputs, _classes(outputs)]} if outputs else SCHEMAS["InferOutput"],
        "RequestedOutput": _one_of(requested),
        "GenerateRequest": {"type": "object", "properties": flat, "required": needed},
    }
    return {name: schema for name, schema in found.items() if schema}


def _one_of(schemas: list[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"oneOf": schemas} if schemas else {}


def _dims(dims: Shape, spec: ModelSpec, *, shared: bool = False) -> list[Schema]:
    """A schema of each dimension that a client sends."""
    sizes = [{"type": "integer", "minimum": 0} if dim < 0 else {"const": dim} for dim in dims]
    if spec.max_batch_size <= 0 or shared:
        return sizes
    batch = {"type": "integer", "minimum": 1, "maximum": spec.max_batch_size, "description": "the batch"}
    return [batch, *sizes]


def _tensor_schema(name: str, datatype: str, dims: list[Schema]) -> Schema:
    shape: Schema = {"type": "array", "minItems": len(dims), "maxItems": len(dims)}
    if dims:
        shape["prefixItems"] = dims
    required = {"name": {"const": name}, "datatype": {"const": datatype}, "shape": shape}
    optional: dict[str, Schema] = {"parameters": ref("TensorParameters")}
    if datatype not in ("FP16", "BF16"):
        optional["data"] = listing({"anyOf": [_value_schema(datatype), _NESTED]})
    return record(required, optional)


def _value_schema(datatype: str) -> Schema:
    if datatype not in NUMBER_CODES:
        return {"type": "boolean" if datatype == "BOOL" else "string"}
    if datatype.startswith("FP"):
        return {"type": "number"}
    bits = int(datatype.lstrip("UINT"))
    low, high = (0, 2**bits - 1) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return {"type": "integer", "minimum": low, "maximum": high}


def _requested_parameters(labels: tuple[str, ...]) -> Schema:
    """The parameters of a requested output, which name the number of its classes."""
    most = {"maximum": len(labels)} if labels else {}
    text = f"answer with this many classes, as VALUE:INDEX{':LABEL' if labels else ''}"
    return record(
        {},
        {
            "binary_data": {"type": "boolean"},
            "classification": {"type": "integer", "minimum": 0, **most, "description": text},
        },
    )


def _classes(outputs: list[Schema]) -> Schema:
    names = [each["properties"]["name"]["const"] for each in outputs]
    fields: dict[str, Schema] = {"name": {"enum": names}, "datatype": {"const": "BYTES"}, "shape": listing(NUMBER)}
    return record(fields, {"data": listing(TEXT_VALUE), "parameters": ANY_OBJECT})


# --- the views


def openapi(application: V2Application, environ: Environ) -> Reply:
    """The document of the server."""
    return json_reply(application.bridge.run(_server_document, application))


def _server_document(application: V2Application) -> dict[str, Any]:
    metadata = application.engine.server_metadata()
    routes = application.documented_routes()
    return openapi_document(metadata.name, metadata.version, routes, base="../..", options=application.options)


def model_openapi(application: V2Application, environ: Environ, model: str, version: str = "") -> Reply:
    """The document of one model. Raises the lookup errors of `model`."""
    spec = application.engine.model_spec(model, version_number(version))
    # From the document's own address to the root.
    base = "/".join([".."] * (5 if version else 3))
    return json_reply(application.bridge.run(model_document, application, spec, version, base))
