"""`moto_server`, which implements S3's protocol, in its own process.

What it does not do, and a test must get elsewhere: refusals (any credentials and none are good), throttling, encryption
that changes an etag, and the whole object's etag in the answer for one part of it.
"""

from __future__ import annotations

import http.client
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.contract.repository.emulator_process import EmulatorProcess
from tests.contract.servers.ports import HOST
from tests.waiting import LIMIT_S

REGION = "us-east-1"
AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CA_BUNDLE",
)


def leave_aws(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Hide this machine's configuration from boto3's default chain. `folder` may contain a `config` file."""
    for name in AWS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))


class S3Emulator(EmulatorProcess):
    """`s3://{address}/bucket/prefix` leads to it, and so does AWS_ENDPOINT_URL_S3=`endpoint`."""

    def __init__(self) -> None:
        super().__init__()
        self._buckets: set[str] = set()
        session = boto3.session.Session("emulator", "emulator-secret", region_name=REGION)
        # Ignores this machine's configuration even before `leave_aws`.
        config = Config(ignore_configured_endpoint_urls=True)
        self.client: Any = session.client("s3", endpoint_url=self.endpoint, config=config)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)]

    def answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=LIMIT_S)
        try:
            connection.request("GET", "/moto-api/")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True

    def make_bucket(self, bucket: str) -> None:
        """An empty one, unless it is there."""
        if bucket not in self._buckets:
            self.client.create_bucket(Bucket=bucket)
            self._buckets.add(bucket)

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """An object, in the place of one of that key if there is one; the bucket is made where it is missing."""
        self.make_bucket(bucket)
        self.client.put_object(Bucket=bucket, Key=key, Body=content)

    def put_multipart(self, bucket: str, key: str, parts: Sequence[bytes]) -> None:
        """As `put`, uploaded in these parts; each but the last must have 5 MiB at least."""
        self.make_bucket(bucket)
        upload = self.client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
        names = {"Bucket": bucket, "Key": key, "UploadId": upload}
        done = [
            {"PartNumber": number, "ETag": self.client.upload_part(**names, PartNumber=number, Body=part)["ETag"]}
            for number, part in enumerate(parts, 1)
        ]
        self.client.complete_multipart_upload(**names, MultipartUpload={"Parts": done})

    def delete(self, bucket: str, key: str) -> None:
        self.client.delete_object(Bucket=bucket, Key=key)

    def _stop(self) -> None:
        self.client.close()
        super()._stop()
