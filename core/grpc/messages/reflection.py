"""The questions of the server reflection and their answers. Import this module when a client asks.

Source: grpc's `v1/reflection.proto`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from core.grpc.errors import MalformedMessage
from core.grpc.messages.proto_files import ProtoFiles, all_files, reflection_file
from core.grpc.status import Status
from core.inference.tensors import Buffer

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
