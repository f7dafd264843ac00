"""The proto files of the services, as their descriptions go to clients of the server reflection.

Triton's own are in protobuf's pool once `schema` was imported. Those of health and reflection are written here, as they
come with packages that the server does not need. Import this module when a client asks: it imports protobuf.
Source: grpc's `health.proto`, `v1/reflection.proto` and `v1alpha/reflection.proto`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from trident.core.grpc.schema import service as triton_service
from trident.core.grpc.status import MalformedMessage, Status
from trident.core.inference.tensors import Buffer

_TYPES = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
}
# Name, type, number: a field of a message. The type of a repeated one begins with *, a message's type with a dot; the
# name of a member of the message's `oneof` begins with |.
_Field = tuple[str, str, int]


def health_file() -> FileDescriptorProto:
    file = _file("grpc/health/v1/health.proto", "grpc.health.v1")
    _message(file, "HealthCheckRequest", [("service", "string", 1)])
    response = _message(file, "HealthCheckResponse", [])
    status = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")):
        status.value.add(name=name, number=number)
    response.field.add(
        name="status",
        number=1,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.TYPE_ENUM,
        type_name=".grpc.health.v1.HealthCheckResponse.ServingStatus",
    )
    service = file.service.add(name="Health")
    for name in ("Check", "Watch"):
        method = service.method.add(name=name)
        method.input_type, method.output_type = (
            f".grpc.health.v1.HealthCheck{kind}" for kind in ("Request", "Response")
        )
        if name == "Watch":
            method.server_streaming = True
    return file


def reflection_file(version: str) -> FileDescriptorProto:
    """`version` is v1 or v1alpha; the two differ in their names only."""
    file = _file(f"grpc/reflection/{version}/reflection.proto", f"grpc.reflection.{version}")
    _message(
        file,
        "ServerReflectionRequest",
        [
            ("host", "string", 1),
            ("|file_by_filename", "string", 3),
            ("|file_containing_symbol", "string", 4),
            ("|file_containing_extension", ".ExtensionRequest", 5),
            ("|all_extension_numbers_of_type", "string", 6),
            ("|list_services", "string", 7),
        ],
        "message_request",
    )
    _message(file, "ExtensionRequest", [("containing_type", "string", 1), ("extension_number", "int32", 2)])
    _message(
        file,
        "ServerReflectionResponse",
        [
            ("valid_host", "string", 1),
            ("original_request", ".ServerReflectionRequest", 2),
            ("|file_descriptor_response", ".FileDescriptorResponse", 4),
            ("|all_extension_numbers_response", ".ExtensionNumberResponse", 5),
            ("|list_services_response", ".ListServiceResponse", 6),
            ("|error_response", ".ErrorResponse", 7),
        ],
        "message_response",
    )
    _message(file, "FileDescriptorResponse", [("file_descriptor_proto", "*bytes", 1)])
    _message(file, "ExtensionNumberResponse", [("base_type_name", "string", 1), ("extension_number", "*int32", 2)])
    _message(file, "ListServiceResponse", [("service", "*.ServiceResponse", 1)])
    _message(file, "ServiceResponse", [("name", "string", 1)])
    _message(file, "ErrorResponse", [("error_code", "int32", 1), ("error_message", "string", 2)])
    file.service.add(name="ServerReflection").method.add(
        name="ServerReflectionInfo",
        input_type=f".{file.package}.ServerReflectionRequest",
        output_type=f".{file.package}.ServerReflectionResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return file


def triton_files() -> list[FileDescriptorProto]:
    """The file of Triton's service, and the files that it needs."""
    service = triton_service.DESCRIPTOR
    return [FileDescriptorProto.FromString(file.serialized_pb) for file in (service, *service.dependencies)]


class ProtoFiles:
    """Finds files by their names and by what they define."""

    def __init__(self, files: Iterable[FileDescriptorProto]) -> None:
        self._by_name = {file.name: file for file in files}
        self._by_symbol = {symbol: file for file in self._by_name.values() for symbol in _symbols(file)}
        self.services = sorted(
            f"{file.package}.{service.name}" for file in self._by_name.values() for service in file.service
        )

    def named(self, name: str) -> list[bytes] | None:
        """The serialized file and those that it needs; None if there is none."""
        file = self._by_name.get(name)
        return None if file is None else self._with_needed(file)

    def defining(self, symbol: str) -> list[bytes] | None:
        """As `named`, for the full name of a service, method, message, field or enum."""
        file = self._by_symbol.get(symbol)
        return None if file is None else self._with_needed(file)

    def has_message(self, name: str) -> bool:
        return name in self._by_symbol

    def _with_needed(self, file: FileDescriptorProto) -> list[bytes]:
        needed = [self._by_name[name] for name in file.dependency]
        return [each.SerializeToString() for each in (file, *needed)]


def all_files() -> ProtoFiles:
    return ProtoFiles([*triton_files(), health_file(), reflection_file("v1"), reflection_file("v1alpha")])


def _file(name: str, package: str) -> FileDescriptorProto:
    return FileDescriptorProto(name=name, package=package, syntax="proto3")


def _message(
    file: FileDescriptorProto, name: str, fields: Iterable[_Field], choice: str | None = None
) -> DescriptorProto:
    message: DescriptorProto = file.message_type.add(name=name)
    if choice is not None:
        message.oneof_decl.add(name=choice)
    for field_name, kind, number in fields:
        field = message.field.add(name=field_name.lstrip("|"), number=number)
        repeated = kind.startswith("*")
        field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
        kind = kind.lstrip("*")
        if kind.startswith("."):
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{file.package}{kind}"
        else:
            field.type = _TYPES[kind]
        if field_name.startswith("|"):
            field.oneof_index = 0
    return message


def _symbols(file: FileDescriptorProto) -> Iterator[str]:
    package = file.package
    for message in file.message_type:
        yield from _of_message(f"{package}.{message.name}", message)
    for enum in file.enum_type:
        yield f"{package}.{enum.name}"
    for service in file.service:
        name = f"{package}.{service.name}"
        yield name
        yield from (f"{name}.{method.name}" for method in service.method)


def _of_message(name: str, message: DescriptorProto) -> Iterator[str]:
    yield name
    yield from (f"{name}.{field.name}" for field in message.field)
    yield from (f"{name}.{enum.name}" for enum in message.enum_type)
    for nested in message.nested_type:
        yield from _of_message(f"{name}.{nested.name}", nested)


# Source: grpc's `v1/reflection.proto`.


VERSIONS = ("v1", "v1alpha")


@lru_cache(maxsize=1)
def _files() -> ProtoFiles:
    return all_files()


@lru_cache(maxsize=len(VERSIONS))
def _classes(version: str) -> tuple[Any, Any]:
    """The classes of the request and of the response. A pool of their own: other code may have registered them."""
    pool = DescriptorPool()
    pool.AddSerializedFile(reflection_file(version).SerializeToString())
    package = f"grpc.reflection.{version}"
    request, response = (pool.FindMessageTypeByName(f"{package}.ServerReflection{k}") for k in ("Request", "Response"))
    return GetMessageClass(request), GetMessageClass(response)


def answer(version: str, content: Buffer) -> bytes:
    """The ServerReflectionResponse to a ServerReflectionRequest. Raises MalformedMessage."""
    request_class, response_class = _classes(version)
    try:
        request = request_class.FromString(bytes(content))
    except DecodeError:
        raise MalformedMessage from None
    response = response_class(valid_host=request.host, original_request=request)
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        for name in _files().services:
            response.list_services_response.service.add(name=name)
    elif kind in ("file_by_filename", "file_containing_symbol"):
        asked = getattr(request, kind)
        found = _files().named(asked) if kind == "file_by_filename" else _files().defining(asked)
        if found is None:
            _refuse(response, Status.NOT_FOUND, f"'{asked}' is not known")
        else:
            response.file_descriptor_response.file_descriptor_proto.extend(found)
    elif kind == "all_extension_numbers_of_type":
        if _files().has_message(request.all_extension_numbers_of_type):
            response.all_extension_numbers_response.base_type_name = request.all_extension_numbers_of_type
        else:
            _refuse(response, Status.NOT_FOUND, f"'{request.all_extension_numbers_of_type}' is not known")
    elif kind == "file_containing_extension":
        _refuse(response, Status.NOT_FOUND, "the messages have no extensions")
    else:
        _refuse(response, Status.INVALID_ARGUMENT, "the request asks for nothing")
    serialized: bytes = response.SerializeToString()
    return serialized


def _refuse(response: Any, status: Status, text: str) -> None:
    response.error_response.error_code = status
    response.error_response.error_message = text
