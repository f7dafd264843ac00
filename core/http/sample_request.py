"""A request to a model that a person can copy, made from what the model takes: for curl, Triton's clients, the SDKs of
SageMaker and Vertex AI, and perf_analyzer.

Every input is one number or text, repeated: ones and `text`, which most models take, and which are short however large
a tensor is. Those of text models are texts that fit their task. Dimensions that may vary are 1; those of a picture are
224.
Source: docs/http.md.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np

from trident.core.config.platforms import TEXT as TEXT_BACKEND
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.front_end import HttpFrontEnd
from trident.core.http.reply import TEXT, Environ, Reply, json_reply, text_reply
from trident.core.inference.request import version_number
from trident.core.inference.tensors import BYTES, Datatype, Shape

# --- the content

_TEXT: Final = "text"
# By the inputs that the backend `text` has. Any of its models fills the mask, which other tasks read as a word.
_TEXTS: Final = {
    "text": "Anna lives in [MASK].",
    "query": "Where does Anna live?",
    "question": "Where does Anna live?",
    "context": "Anna lives in Paris.",
    "candidate_labels": "travel",
}
_NOT_JSON = ("FP16", "BF16")
_PICTURE = 224
_CHANNELS = (1, 3, 4)
# A shell makes a word for each element.
_MOST_ELEMENTS = 1 << 22
_MOST_IN_FILE = 1 << 20
_SEQUENCE = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}


@dataclass(frozen=True, slots=True)
class SampleInput:
    """One input, in the shape that a client sends. `inner` is the shape without the batch dimension."""

    name: str
    datatype: Datatype
    shape: Shape
    inner: Shape
    text: str = _TEXT

    @property
    def value(self) -> bool | int | str:
        """Every element."""
        return self.text if self.datatype is BYTES else True if self.datatype.kind == "b" else 1

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def packed(self) -> bytes:
        """One element in the binary form of the protocol."""
        if self.datatype is BYTES:
            return len(self.text).to_bytes(4, "little") + self.text.encode()
        return b"\x80\x3f" if self.datatype.name == "BF16" else np.ones((), self.datatype.dtype).tobytes()

    @property
    def header(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype.name, "shape": self.shape}


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request to `spec`. `version` is "" for the latest; `parameters` are those that it needs."""

    spec: ModelSpec
    version: str
    inputs: tuple[SampleInput, ...]
    parameters: dict[str, bool | int]

    @property
    def path(self) -> str:
        """Of the model. The server compares a path as it is sent, so characters that may stand in one stay."""
        version = f"/versions/{self.version}" if self.version else ""
        return f"/v2/models/{quote(self.spec.name, safe=_IN_PATH)}{version}"

    @property
    def needs_binary(self) -> bool:
        """True if an input or an output has no form in JSON."""
        return any(each.datatype.name in _NOT_JSON for each in self.inputs) or self.has_binary_output

    @property
    def has_binary_output(self) -> bool:
        return any(each.datatype.name in _NOT_JSON for each in self.spec.outputs.values())


_IN_PATH = "!$&'()*+,;=:@"


def make_sample(spec: ModelSpec, version: str = "", shapes: Mapping[str, Shape] | None = None) -> SampleRequest:
    """A request with one item and without optional inputs. `shapes` replace those of inputs, batch dimension included.

    Raises InvalidRequest for a shape of an input that the model does not have.
    """
    shapes = shapes or {}
    for name in shapes.keys() - spec.inputs.keys():
        raise InvalidRequest(f"the model has no input '{name}'", hint=f"its inputs: {', '.join(spec.inputs)}")
    inputs = []
    for each in spec.inputs.values():
        shape, dims = shapes.get(each.name), each.dims
        if each.optional and shape is None:
            continue
        batch = 1 if spec.max_batch_size > 0 and not each.is_shape_tensor else 0
        if shape is None:
            # Channels, height and width, of which the last two may vary; or with the channels last.
            is_picture = (
                len(dims) >= 3 and dims[-3:].count(-1) == 2 and (dims[-3] in _CHANNELS or dims[-1] in _CHANNELS)
            )
            shape = (1,) * batch + tuple((_PICTURE if is_picture else 1) if dim < 0 else dim for dim in dims)
        text = _TEXT
        if spec.backend == TEXT_BACKEND:
            is_alone = each.name == "text" and "answer" not in spec.outputs
            text = "Anna lives in Paris." if is_alone else _TEXTS.get(each.name, _TEXT)
        inputs.append(SampleInput(each.name, each.datatype, shape, shape[batch:], text))
    is_sequence = spec.sequence is not None and not spec.sequence.is_iterative
    return SampleRequest(spec, version, tuple(inputs), dict(_SEQUENCE) if is_sequence else {})


def request_document(sample: SampleRequest, *, binary: bool = False) -> dict[str, Any]:
    """The body of an infer request, or its JSON in front of `binary` tensors."""
    parameters = dict(sample.parameters)
    if binary and sample.has_binary_output:
        parameters["binary_data_output"] = True
    inputs = []
    for each in sample.inputs:
        size = {"binary_data_size": len(each.packed) * each.count} if binary else {}
        inputs.append(each.header | ({"parameters": size} if binary else {"data": [each.value] * each.count}))
    return {"inputs": inputs, **({"parameters": parameters} if parameters else {})}


def _json(value: Any) -> str:
    """ASCII without control characters, so that it stays one line wherever it is pasted."""
    return json.dumps(value, separators=(",", ":"))


def _refuse_binary(sample: SampleRequest, instead: str) -> None:
    if sample.needs_binary:
        raise InvalidRequest("FP16 and BF16 have no form in JSON", hint=f"the form {instead} sends them")


# --- where it is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A server. `url` is that of its HTTP port and `grpc_url` that of its gRPC port, without a path; "": not open.

    `headers` has the name of each header that a client must send, what its value begins with, and the environment
    variable that has the rest: a secret is never part of a request. `trusted`: a TLS certificate is checked by curl.
    """

    url: str
    grpc_url: str = ""
    headers: Sequence[tuple[str, str, str]] = ()
    trusted: bool = True


TOKEN: Final = ("Authorization", "Bearer ", "TOKEN")


# --- a request for a shell. A long tensor is written by the shell's printf, which repeats its format for each word.

# A text, or a format of printf and how often it is written.
_Part = str | tuple[str, int]
_INLINE = 256


def _curl(sample: SampleRequest, place: Place) -> str:
    _refuse_binary(sample, "curl-binary")
    if sample.spec.decoupled:
        return _shell(_json_parts(sample), _curl_words(place, f"{sample.path}/generate_stream", "-sN"))
    return _shell(_json_parts(sample), _curl_words(place, f"{sample.path}/infer"))


def _json_parts(sample: SampleRequest) -> Iterator[_Part]:
    """The body of an infer request, or of a generate request to a decoupled model."""
    flat = sample.spec.decoupled
    yield "{" if flat else '{"inputs":['
    for at, each in enumerate(sample.inputs):
        element = _json(each.value)
        is_list = each.count != 1 or not flat
        head = f"{_json(each.name)}:" if flat else _json(each.header)[:-1] + ',"data":'
        yield f"{',' if at else ''}{head}{'[' if is_list else ''}"
        if each.count <= _INLINE:
            yield ",".join([element] * each.count)
        else:
            yield element
            yield "," + element, each.count - 1
        yield f"{']' if is_list else ''}{'' if flat else '}'}"
    if not flat:
        yield "]" + (f',"parameters":{_json(sample.parameters)}' if sample.parameters else "")
    yield "}"


def _curl_binary(sample: SampleRequest, place: Place) -> str:
    if sample.spec.decoupled:
        raise InvalidRequest("a model that answers any number of times takes no binary tensors over HTTP", hint="grpc")
    head = _json(request_document(sample, binary=True))
    parts: list[_Part] = [head]
    for each in sample.inputs:
        parts.append(("".join(f"\\{byte:03o}" for byte in each.packed), each.count))
    words = _curl_words(place, f"{sample.path}/infer")
    for header in (f"Inference-Header-Content-Length: {len(head)}", "Content-Type: application/octet-stream"):
        words += ["-H", shlex.quote(header)]
    if sample.has_binary_output:
        words += ["-o", "answer.bin"]
    return _shell(parts, words, data="--data-binary")


def curl(place: Place, path: str) -> str:
    """A GET."""
    return " ".join(_curl_words(place, path))


def _curl_words(place: Place, path: str, flags: str = "-s") -> list[str]:
    words = ["curl", flags, *([] if place.trusted else ["-k"]), shlex.quote(place.url + path)]
    for name, start, variable in place.headers:
        # A header's name may have characters that are a shell's.
        words += ["-H", '"' + re.sub(r'([$`"\\])', r"\\\1", f"{name}: {start}") + f'${variable}"']
    return words


def _shell(parts: Iterable[_Part], words: Sequence[str], data: str = "-d") -> str:
    """The command that sends `parts`. `words` are quoted."""
    text, lines, elements = "", "", 0
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        element, times = part
        if times:
            lines += f"  printf %s {shlex.quote(text)}\n" if text else ""
            lines += f"  printf {shlex.quote(element + '%.0s')} $(seq {times})\n"
            text, elements = "", elements + times
    command = " ".join(words)
    if not lines:
        return f"{command} {data} {shlex.quote(text)}"
    if elements > _MOST_ELEMENTS:
        raise InvalidRequest("the inputs are too large for a line of a shell", hint="use another form, or --shape")
    lines += f"  printf %s {shlex.quote(text)}\n" if text else ""
    return f"{{\n{lines}}} | {command} {data} @-"


# --- a request for Python


def _python(value: str | bool | int) -> str:
    """A literal of Python."""
    return json.dumps(value) if isinstance(value, str) and value.isascii() else ascii(value)


def _imports(standard: Sequence[str]) -> str:
    """The lines for modules of Python, with the empty line before those of others."""
    return "".join(f"import {name}\n" for name in standard) + ("\n" if standard else "")


_ANSWER = """\
answer = client.infer({call}{headers})
for output in answer.get_response(){outputs}:
    print(output{name}, answer.as_numpy(output{name}))"""
_ANSWERS = """\
answers = queue.Queue()
client.start_stream(lambda result, error: answers.put((result, error)){headers})
client.async_stream_infer({call}, enable_empty_final_response=True)
is_final = False
while not is_final:
    answer, error = answers.get()
    if error:
        raise error
    response = answer.get_response()
    for output in response{outputs}:
        print(output{name}, answer.as_numpy(output{name}))
    is_final = response.parameters["triton_final_response"].bool_param
client.stop_stream()"""


def _tritonclient(sample: SampleRequest, place: Place, module: str) -> str:
    """For `tritonclient.http` or `tritonclient.grpc`, where a header's name is in lower case."""
    spec, is_grpc = sample.spec, module == "grpc"
    if is_grpc and not place.grpc_url:
        raise InvalidRequest("the gRPC port is not open", hint="--allow-grpc=true opens it")
    if spec.decoupled and not is_grpc:
        text = "tritonclient.http has no call for a model that answers any number of times"
        raise InvalidRequest(text, hint="grpc")
    at = urlsplit(place.grpc_url if is_grpc else place.url)
    inputs = values = ""
    for index, each in enumerate(sample.inputs):
        shape = list(each.shape)
        inputs += f"    triton.InferInput({_python(each.name)}, {shape}, {_python(each.datatype.name)}),\n"
        # The clients take BF16 as numbers of 32 bits.
        names = {"BYTES": "object_", "BF16": "float32", "BOOL": "bool_"}
        name = names.get(each.datatype.name) or str(each.datatype.dtype)
        value = f'b"{each.text}"' if each.datatype is BYTES else str(each.value)
        values += f"inputs[{index}].set_data_from_numpy(np.full({shape}, {value}, np.{name}))\n"
    call = f"{_python(spec.name)}, inputs"
    if sample.version:
        call += f", model_version={_python(sample.version)}"
    call += "".join(f", {name}={value}" for name, value in sample.parameters.items())
    headers = []
    for name, start, variable in place.headers:
        begin = f"{_python(start)} + " if start else ""
        headers.append(f'{_python(name.lower() if is_grpc else name)}: {begin}os.environ["{variable}"]')
    answers = (_ANSWERS if spec.decoupled else _ANSWER).format(
        call=call,
        headers=f", headers={{{', '.join(headers)}}}" if headers else "",
        outputs=".outputs" if is_grpc else '["outputs"]',
        name=".name" if is_grpc else '["name"]',
    )
    return f"""\
# pip install 'tritonclient[{module}]'
{_imports(["os"] * bool(headers) + ["queue"] * spec.decoupled)}import numpy as np
import tritonclient.{module} as triton

client = triton.InferenceServerClient({_python(at.netloc + at.path)}{", ssl=True" if at.scheme == "https" else ""})
inputs = [
{inputs}]
{values}{answers}"""


def python_body(sample: SampleRequest, binary_type: str) -> tuple[str, str, str]:
    """Lines that make `body`, a value to send as it is, with the Content-Type in Python; and the imports."""
    flat = sample.spec.decoupled
    if flat:
        _refuse_binary(sample, "grpc")
    elif sample.needs_binary:
        head = _python(_json(request_document(sample, binary=True)))
        tensors = " + ".join(f'bytes.fromhex("{each.packed.hex()}") * {each.count}' for each in sample.inputs)
        type_with_size = f'f"{binary_type};json-header-size={{len(head)}}"'
        return f"head = {head}.encode()\nbody = head + {tensors}", type_with_size, ""
    members = ""
    for each in sample.inputs:
        name, value = _python(each.name), _python(each.value)
        data = f"[{value}] * {each.count}" if each.count != 1 else value if flat else f"[{value}]"
        if flat:
            members += f"    {name}: {data},\n"
        else:
            head = f'"name": {name}, "datatype": "{each.datatype.name}", "shape": {list(each.shape)}'
            members += f'        {{{head}, "data": {data}}},\n'
    if not flat:
        members = f'    "inputs": [\n{members}    ],\n'
        if sample.parameters:
            parameters = ", ".join(f"{_python(name)}: {value}" for name, value in sample.parameters.items())
            members += f'    "parameters": {{{parameters}}},\n'
    return f"body = json.dumps({{\n{members}}})", '"application/json"', "json"


def _sagemaker(sample: SampleRequest, place: Place) -> str:
    body, content_type, module = python_body(sample, "application/vnd.sagemaker-triton.binary+json")
    note, call = "", "invoke_endpoint"
    show = f'print(answer["Body"].read(){"" if sample.has_binary_output else ".decode()"})'
    if sample.spec.decoupled:
        note = "# The endpoint's model has SAGEMAKER_TRITON_INFERENCE_TYPE=generate_stream.\n"
        call = "invoke_endpoint_with_response_stream"
        show = 'for event in answer["Body"]:\n    print(event["PayloadPart"]["Bytes"].decode(), end="")'
    return f"""\
{_imports(["json", "os"] if module else ["os"])}import boto3

{note}{body}
client = boto3.client("sagemaker-runtime")
answer = client.{call}(
    EndpointName=os.environ["SAGEMAKER_ENDPOINT"],
    ContentType={content_type},
    Body=body,
)
{show}"""


def _vertex(sample: SampleRequest, place: Place) -> str:
    body, content_type, module = python_body(sample, "application/vnd.vertex-ai-triton.binary+json")
    encoded = "body.encode()" if module else "body"
    if sample.spec.decoupled:
        headers = f'{{"Content-Type": {content_type}, "Accept": "text/event-stream"}}'
        call = f"for line in endpoint.stream_raw_predict(body={encoded}, headers={headers}):\n    print(line.decode())"
    else:
        call = f'answer = endpoint.raw_predict(body={encoded}, headers={{"Content-Type": {content_type}}})\n'
        call += f"print(answer.{'content' if sample.has_binary_output else 'text'})"
    return f"""\
{_imports(["json", "os"] if module else ["os"])}from google.cloud import aiplatform

# projects/PROJECT/locations/REGION/endpoints/NUMBER
endpoint = aiplatform.Endpoint(os.environ["VERTEX_ENDPOINT"])
{body}
{call}"""


# --- a file for perf_analyzer, whose shapes have no batch dimension


def _perf_analyzer(sample: SampleRequest, place: Place) -> str:
    step = {}
    for each in sample.inputs:
        if each.count > _MOST_IN_FILE:
            raise InvalidRequest("the inputs are too large for a file", hint="perf_analyzer makes random ones itself")
        content: object = [each.value] * min(each.count, _INLINE)
        if each.datatype.name in _NOT_JSON or each.count > _INLINE:
            content = {"b64": b64encode(each.packed * each.count).decode()}
        step[each.name] = {"content": content, "shape": each.inner}
    return _json({"data": [[step] if sample.parameters else step]})


# --- the forms


class Form(NamedTuple):
    """`language` is that of the text, as highlighters call it. `write` raises InvalidRequest for a model that has no
    request of this form."""

    name: str
    title: str
    language: str
    write: Callable[[SampleRequest, Place], str]


FORMS: Final = {
    form.name: form
    for form in (
        Form("curl", "curl with JSON", "shell", _curl),
        Form("curl-binary", "curl with binary tensors", "shell", _curl_binary),
        Form("http", "tritonclient.http", "python", partial(_tritonclient, module="http")),
        Form("grpc", "tritonclient.grpc", "python", partial(_tritonclient, module="grpc")),
        Form("sagemaker", "boto3 for SageMaker", "python", _sagemaker),
        Form("vertex", "SDK of Vertex AI", "python", _vertex),
        Form("perf-analyzer", "file for perf_analyzer --input-data", "json", _perf_analyzer),
    )
}


def write_request(sample: SampleRequest, form: str, place: Place) -> str:
    """The text without a line break at its end. Raises InvalidRequest, also if the model has no request of the form."""
    found = FORMS.get(form)
    if found is None:
        raise InvalidRequest(f"there is no form '{form[:64]}'", hint=f"the forms: {', '.join(FORMS)}")
    return found.write(sample, place)


def parse_shape(text: str) -> tuple[str, Shape]:
    """The name and the dimensions in `NAME:1,16`, as perf_analyzer has them. Raises InvalidRequest."""
    name, _, dims = text.rpartition(":")
    if not name or not re.fullmatch(r"\d{1,9}(,\d{1,9}){0,31}", dims, re.ASCII):
        raise InvalidRequest(f"expected a shape as INPUT:1,16, got '{text[:64]}'")
    return name, tuple(int(dim) for dim in dims.split(","))


# --- the view

_HOST = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
_AUTHORITY = re.compile(_HOST)
_URL = re.compile(rf"https?://{_HOST}(/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?")


def sample_request(front_end: HttpFrontEnd, environ: Environ, model: str, version: str = "") -> Reply:
    """Describe a request to the model, and its forms; with `?form=` return its text.

    `?url=` is the server's address if a proxy has changed it, `?shape=INPUT:1,16` the shape of an input.
    """
    query = parse_qs(environ.get("QUERY_STRING", ""))
    spec = front_end.engine.model_spec(model, version_number(version))
    sample = make_sample(spec, version, dict(parse_shape(text) for text in query.get("shape", ())))
    url = query.get("url", [""])[0]
    if url and not _URL.fullmatch(url):
        raise InvalidRequest(f"'url' is '{url[:64]}', expected one as http://localhost:8000")
    host = environ.get("HTTP_HOST", "")
    if not _AUTHORITY.fullmatch(host):
        host = f"localhost:{environ.get('SERVER_PORT', '')}".rstrip(":")
    at = urlsplit(url or f"{environ.get('wsgi.url_scheme', 'http')}://{host}")
    options = front_end.options
    headers = [TOKEN] if options.tokens is not None and options.tokens.requires("inference") else []
    headers += [(each.header, "", "KEY") for each in options.restricted if "inference" in each.groups]
    name = re.sub(r":[0-9]+$", "", at.netloc)
    grpc = f"{'https' if options.grpc_tls else 'http'}://{name}:{options.grpc_port}" if options.grpc_port else ""
    place = Place(url=at.geturl().rstrip("/"), grpc_url=grpc, headers=headers)
    if form := query.get("form", [""])[0]:
        text = front_end.bridge.run(write_request, sample, form, place)
        return text_reply(200, f"{text}\n".encode(), TEXT)
    return json_reply(front_end.bridge.run(sample_json, sample, place))


def sample_json(sample: SampleRequest, place: Place) -> dict[str, Any]:
    forms = []
    for form in FORMS.values():
        shown = {"name": form.name, "title": form.title, "language": form.language}
        try:
            form.write(sample, place)
        except InvalidRequest as error:
            shown["unavailable"] = error.message
        forms.append(shown)
    return {
        "model": sample.spec.name,
        "version": sample.version,
        "path": f"{sample.path}/{'generate_stream' if sample.spec.decoupled else 'infer'}",
        "inputs": [{**each.header, "value": each.value} for each in sample.inputs],
        "parameters": sample.parameters,
        "headers": [name for name, _, _ in place.headers],
        "forms": forms,
    }
