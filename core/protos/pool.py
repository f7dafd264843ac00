"""The classes of the messages that `messages.binpb` describes.

They are in a pool of their own. The default one refuses a second file or message of the same name, and the process may
import `tritonclient.grpc` before or after this: its messages and these then have classes of their own.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass


@lru_cache(maxsize=1)
def pool() -> DescriptorPool:
    made = DescriptorPool()
    for file in FileDescriptorSet.FromString(Path(__file__).with_name("messages.binpb").read_bytes()).file:
        made.AddSerializedFile(file.SerializeToString())
    return made


def types_of(file_name: str) -> dict[str, Any]:
    """The classes of a file's messages and enums by name, as a module that protoc generates has them."""
    file = pool().FindFileByName(file_name)
    messages = {name: GetMessageClass(message) for name, message in file.message_types_by_name.items()}
    return messages | {name: EnumTypeWrapper(enum) for name, enum in file.enum_types_by_name.items()}
