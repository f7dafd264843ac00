"""The OpenAPI 3.1 documents of a server and of a model, made from the route table when they are asked for.

The route table gives the paths, methods and groups; `openapi.json` says of each route what its bodies are. The document
of a model has the routes of that model alone, with its own inputs and outputs, and a request that works.

`openapi.json` and the platforms write schemas in short:

    "text", "count", …      a type of the table
    "InferRequest", …       a schema of the table
    [SCHEMA]                an array
    {"name": SCHEMA, …}     an object; a `?` behind the name marks a member that may be missing
    {"anyOf": [SCHEMA, …]}
    {"$": {…}}              JSON Schema as it stands

Source: docs/http.md; OpenAPI Specification 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from trident.core.config.spec import ModelSpec
from trident.core.http.front_end import HttpOptions
from trident.core.http.reply import JSON, TEXT, Environ, Reply, json_reply
from trident.core.http.sample_request import make_sample, request_document
from trident.core.inference.request import version_number
from trident.core.inference.tensors import NUMBER_CODES, Shape

if TYPE_CHECKING:
    from trident.core.http.application import V2Application
    from trident.core.http.routes import Route

Schema = dict[str, Any]
ShortSchema = str | list[Any] | dict[str, Any]

OCTETS: Final = "application/octet-stream"


class Operation(NamedTuple):
    """The methods of a route for OpenAPI. `answer` is the body of the `status`, `body` that of a POST: a schema in
    short, of JSON, or one for each media type."""

    summary: str
    answer: ShortSchema = ""
    body: ShortSchema = ""
    needs_body: bool = True
    parameters: Sequence[Schema] = ()
    status: int = HTTPStatus.OK


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    table: dict[str, Any] = orjson.loads(Path(__file__).with_name("openapi.json").read_bytes())
    return table


@lru_cache(maxsize=1)
def operations() -> Mapping[str, Operation]:
    return {name: Operation(**row) for name, row in _table()["operations"].items()}


@lru_cache(maxsize=1)
def _common_schemas() -> dict[str, Schema]:
    return {name: full_schema(short) for name, short in _table()["schemas"].items()}


def full_schema(short: ShortSchema) -> Schema:
    if isinstance(short, str):
        named: Schema = _table()["types"].get(short, {"$ref": f"#/components/schemas/{short}"})
        return named
    if isinstance(short, list):
        return {"type": "array", "items": full_schema(short[0])}
    if "$" in short:
        schema: Schema = short["$"]
        return schema
    if "anyOf" in short:
        return {"anyOf": [full_schema(each) for each in short["anyOf"]]}
    schema = {
        "type": "object",
        "properties": {name.removesuffix("?"): full_schema(member) for name, member in short.items()},
    }
    required = [name for name in short if not name.endswith("?")]
    return {**schema, "required": required} if required else schema


# --- the document


def undescribed(route: Route) -> Operation:
    """The operation of a route of another package's platform."""
    return Operation(f"The route {route.name} of the platform", {OCTETS: "any"}, {OCTETS: "bytes"}, needs_body=False)


def openapi_document(
    title: str,
    version: str,
    routes: Iterable[tuple[Route, Operation]],
    *,
    base: str = "/",
    options: HttpOptions | None = None,
    rules: Callable[[Route], Iterable[str]] = lambda route: route.rules,
) -> dict[str, Any]:
    """The document of `routes`. `base` is where the paths begin, as a URL that may be relative to the document's own.
    `rules` are those of a route that are shown."""
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
    components = {"schemas": _common_schemas(), **({"securitySchemes": schemes} if schemes else {})}
    info = {"title": title, "version": version}
    return {"openapi": "3.1.0", "info": info, "servers": [{"url": base}], "paths": paths, "components": components}


_CAPTURED = re.compile(r"<(?:(\w+)(?:\((.*?)\))?:)?(\w+)>")


def _template(rule: str) -> tuple[str, list[Schema]]:
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
    error = "OpenAiError" if route.openai_errors else "Error"
    answer = {"description": HTTPStatus(operation.status).phrase, **_content(operation.answer)}
    failed = {"description": "An error", **_content({JSON: error, TEXT: "text"})}
    made: dict[str, Any] = {
        "operationId": identity if len(route.methods) == 1 else f"{method.lower()}_{identity}",
        "summary": operation.summary,
        "tags": [route.group or "platform"],
        "responses": {str(int(operation.status)): answer, "default": failed},
    }
    if operation.parameters:
        made["parameters"] = [{"in": "query", "required": False, **each} for each in operation.parameters]
    if operation.body and method == "POST":
        made["requestBody"] = {"required": operation.needs_body, **_content(operation.body)}
    return made


def _content(short: ShortSchema) -> dict[str, Any]:
    if not short:
        return {}
    by_type = short if isinstance(short, dict) and "/" in next(iter(short)) else {JSON: short}
    return {"content": {media_type: {"schema": full_schema(each)} for media_type, each in by_type.items()}}


def _security(group: str, options: HttpOptions | None, schemes: dict[str, Any]) -> dict[str, list[str]]:
    """The credentials for `group`, whose description is added to `schemes`."""
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

_OF_MODEL = "/v2/models/<model>"
_OF_VERSION = f"{_OF_MODEL}/versions/<digits:version>"
_LARGEST_EXAMPLE = 4096


def model_document(application: V2Application, spec: ModelSpec, version: str, base: str) -> dict[str, Any]:
    """The routes of one model, with its name in their paths and its own tensors in their bodies."""
    sample = make_sample(spec, version)
    start = _OF_VERSION if version else _OF_MODEL

    def rules(route: Route) -> list[str]:
        tails = [rule for rule in route.rules if rule.startswith(start)]
        return [rule for rule in tails if version or not rule.startswith(_OF_VERSION)]

    left_out = {"generate", "infer"} if spec.decoupled else set()
    routes = [each for each in application.documented_routes() if each[0].name not in left_out]
    document = openapi_document(
        spec.name, str(spec.version), routes, base=base, options=application.options, rules=rules
    )
    paths = document["paths"] = {
        sample.path + path.removeprefix(_template(start)[0]): item for path, item in document["paths"].items()
    }
    for item in paths.values():
        item.pop("parameters", None)
    document["components"]["schemas"] = {**_common_schemas(), **_schemas(spec)}
    # A request that is too long, or has no form in JSON, is not an example.
    if sum(each.count for each in sample.inputs) <= _LARGEST_EXAMPLE and not sample.needs_binary:
        flat = {each.name: [each.value] * each.count if each.count > 1 else each.value for each in sample.inputs}
        for tail in ("/infer", "/generate", "/generate_stream"):
            if item := paths.get(sample.path + tail):
                example = request_document(sample) if tail == "/infer" else flat
                item["post"]["requestBody"]["content"][JSON]["example"] = example
    return document


def _schemas(spec: ModelSpec) -> dict[str, Schema]:
    """The schemas of the table that are narrower for the model."""
    inputs = [
        _tensor(each.name, each.datatype.name, each.dims, 0 if each.is_shape_tensor else spec.max_batch_size)
        for each in spec.inputs.values()
    ]
    least = sum(not each.optional for each in spec.inputs.values())
    listed = {**full_schema(["InferInput"]), "minItems": least, "maxItems": len(inputs)}
    request = _common_schemas()["InferRequest"]
    found = {"InferRequest": {**request, "properties": {**request["properties"], "inputs": listed}}}
    if inputs:
        found["InferInput"] = {"oneOf": inputs}
    if outputs := list(spec.outputs.values()):
        tensors = [_tensor(each.name, each.datatype.name, each.dims, spec.max_batch_size) for each in outputs]
        classes = {"name": {"$": {"enum": list(spec.outputs)}}, "datatype": {"$": {"const": "BYTES"}}}
        classes |= {"shape": ["count"], "data?": ["text"], "parameters?": "TensorParameters"}
        found["InferOutput"] = {"anyOf": [*tensors, full_schema(classes)]}
        # By names of their own: openapi-python-client cannot make an object within a union twice.
        names = [f"RequestedParameters{at}" for at in range(len(outputs))]
        found |= {name: _requested(each.labels) for name, each in zip(names, outputs, strict=True)}
        requested = [
            full_schema({"name": {"$": {"const": each.name}}, "parameters?": name})
            for name, each in zip(names, outputs, strict=True)
        ]
        found["RequestedOutput"] = {"oneOf": requested}
    values = {
        f"{name}{'?' if each.optional else ''}": {"$": _value(each.datatype.name)} for name, each in spec.inputs.items()
    }
    found["GenerateRequest"] = full_schema({name: {"anyOf": [each, [each]]} for name, each in values.items()})
    return found


def _tensor(name: str, datatype: str, dims: Shape, max_batch_size: int) -> Schema:
    sizes = [{"type": "integer", "minimum": 0} if dim < 0 else {"const": dim} for dim in dims]
    if max_batch_size > 0:
        sizes.insert(0, {"type": "integer", "minimum": 1, "maximum": max_batch_size, "description": "the batch"})
    shape = {
        "type": "array",
        "minItems": len(sizes),
        "maxItems": len(sizes),
        **({"prefixItems": sizes} if sizes else {}),
    }
    members = {"name": {"$": {"const": name}}, "datatype": {"$": {"const": datatype}}, "shape": {"$": shape}}
    members["parameters?"] = "TensorParameters"
    if datatype not in ("FP16", "BF16"):
        members["data?"] = [{"anyOf": [{"$": _value(datatype)}, ["any"]]}]
    return full_schema(members)


def _value(datatype: str) -> Schema:
    if datatype not in NUMBER_CODES:
        return {"type": "boolean" if datatype == "BOOL" else "string"}
    if datatype.startswith("FP"):
        return {"type": "number"}
    bits = int(datatype.lstrip("UINT"))
    low, high = (0, 2**bits - 1) if datatype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return {"type": "integer", "minimum": low, "maximum": high}


def _requested(labels: tuple[str, ...]) -> Schema:
    """The parameters of a requested output."""
    text = f"answer with this many classes, as VALUE:INDEX{':LABEL' if labels else ''}"
    classes = {"type": "integer", "minimum": 0, "description": text, **({"maximum": len(labels)} if labels else {})}
    return full_schema({"binary_data?": "boolean", "classification?": {"$": classes}})


# --- the views


def openapi(application: V2Application, environ: Environ) -> Reply:
    return json_reply(application.bridge.run(_server_document, application))


def _server_document(application: V2Application) -> dict[str, Any]:
    metadata = application.engine.server_metadata()
    routes = application.documented_routes()
    return openapi_document(metadata.name, metadata.version, routes, base="../..", options=application.options)


def model_openapi(application: V2Application, environ: Environ, model: str, version: str = "") -> Reply:
    spec = application.engine.model_spec(model, version_number(version))
    # From the document's own address to the root.
    base = "../../../../.." if version else "../../.."
    return json_reply(application.bridge.run(model_document, application, spec, version, base))
