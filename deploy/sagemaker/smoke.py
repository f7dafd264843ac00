"""`smoke`: one request in every form, whose responses must all agree; or a chat over OpenAI's API."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from argparse import Namespace
from typing import Any

import boto3
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from deploy.sagemaker.aws import Aws, BadSettings, DeployError, error_of, failure
from deploy.sagemaker.options import Kind
from deploy.smoke_forms import HEADER_SIZE, Agreement, BadFile, Form, Request, WrongAnswer
from trident.adapters.sagemaker.platform import SageMaker

_POLL_S = 2.0
# Without BINARY: its reader needs the content type of the response, and a queued call only leaves an object in S3.
_QUEUED_FORMS = (Form.V2, Form.INSTANCES, Form.CSV)
_MISSING = ("NoSuchKey", "404", "AccessDenied")


def smoke(aws: Aws, given: Namespace) -> None:
    """Raises DeployError for a malformed response or one that differs from the first form's."""
    if bool(given.chat) == bool(given.request):
        raise BadSettings("either --request or --chat is needed")
    if given.chat:
        _chat(aws, given)
        return
    try:
        request = Request.read(given.request)
    except BadFile as error:
        raise BadSettings(str(error)) from None
    is_queued = given.kind is Kind.ASYNC
    if (given.kind is Kind.MULTI_MODEL) != bool(given.target_model):
        raise BadSettings("--target-model belongs to --kind multi-model", hint="the archive's key below the prefix")
    forms = tuple(map(Form, given.form)) or (_QUEUED_FORMS if is_queued else tuple(Form))
    agreement = Agreement(request.item_count)
    for form in forms:
        body = request.body(form, SageMaker.binary_type)
        parameters: dict[str, Any] = {
            "EndpointName": given.name,
            "ContentType": body.content_type,
            "Accept": body.accept,
            "Body": body.content,
        }
        if given.target_model:
            parameters["TargetModel"] = given.target_model
        started = aws.clock()
        answer = aws.call("sagemaker-runtime", "InvokeEndpointAsync" if is_queued else "InvokeEndpoint", parameters)
        if aws.dry:
            continue
        if is_queued:
            content, stored_type = _queued_answer(aws, answer, given.wait_secs)
            # The object's content type is undocumented; only the binary type carries additional information.
            content_type = stored_type if HEADER_SIZE in stored_type else body.accept
        else:
            content, content_type = answer["Body"].read(), answer["ContentType"]
        try:
            size = agreement.check(form, content, content_type)
        except WrongAnswer as wrong:
            raise DeployError(str(wrong), hint=f"the first response was in the form {forms[0]}") from None
        aws.say(f"{form}: {size}, {(aws.clock() - started) * 1000:.0f} ms")


def _queued_answer(aws: Aws, answer: dict[str, Any], limit_s: float) -> tuple[bytes, str]:
    """Wait for the object that the endpoint writes to S3. Without permission to list, a missing one is refused."""
    deadline = aws.clock() + limit_s
    while True:
        found = _object(aws, answer["OutputLocation"])
        if found is not None:
            return found
        failed = _object(aws, answer["FailureLocation"]) if answer.get("FailureLocation") else None
        if failed is not None:
            raise DeployError(f"the endpoint wrote a failure: {failed[0].decode(errors='replace')[:2000]}")
        if aws.clock() >= deadline:
            raise DeployError(
                f"no response at {answer['OutputLocation']} after {limit_s:g} s",
                hint="an endpoint without instances needs some minutes; use --wait-secs to wait longer",
            )
        aws.pause(_POLL_S)


def _object(aws: Aws, location: str) -> tuple[bytes, str] | None:
    bucket, _, key = location.removeprefix("s3://").partition("/")
    assert aws.client_of is not None
    try:
        found = aws.client_of("s3").get_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if error_of(error)[0] in _MISSING:
            return None
        raise failure("s3", "GetObject", {}, error) from error
    return found["Body"].read(), found["ContentType"]


_TIMEOUT_S = 90


def _chat(aws: Aws, given: Namespace) -> None:
    """Send a chat as OpenAI's clients do, with a bearer token. Raises DeployError."""
    component = f"/inference-components/{given.component}" if given.component else ""
    path = f"/endpoints/{given.name}{component}/openai/v1/chat/completions"
    body = json.dumps({"model": "", "messages": [{"role": "user", "content": given.chat}]})
    if aws.client_of is None:
        aws.say(f"POST {path} {body}")
        return
    meta = aws.client_of("sagemaker-runtime").meta
    credentials = boto3.session.Session().get_credentials()
    if credentials is None and not given.endpoint_url:
        raise DeployError("there are no credentials", hint="use aws configure or AWS_PROFILE")
    token = bearer_token(credentials or Credentials("any", "any"), meta.region_name)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(f"{meta.endpoint_url}{path}", body.encode(), headers)
    started = aws.clock()
    try:
        with urllib.request.urlopen(asked, timeout=_TIMEOUT_S) as answer:
            text = json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        raise DeployError(f"POST {path}: {error.code}: {error.read(2000).decode(errors='replace')}") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DeployError(f"POST {path}: no answer of OpenAI's API: {error}") from None
    aws.say(f"chat: {text!r}, {(aws.clock() - started) * 1000:.0f} ms")


def bearer_token(credentials: Any, region: str, lasts_s: int = 60) -> str:
    """The token that callers of an endpoint's OpenAI API need: a request of CallWithBearerToken, presigned.

    Source: docs/spec/sagemaker.md section A10.
    """
    asked = AWSRequest("POST", "https://sagemaker.amazonaws.com/", params={"Action": "CallWithBearerToken"})
    asked.headers["host"] = "sagemaker.amazonaws.com"
    SigV4QueryAuth(credentials.get_frozen_credentials(), "sagemaker", region, expires=lasts_s).add_auth(asked)
    signed = f"{asked.url.removeprefix('https://')}&Version=1"
    return "sagemaker-api-key-" + base64.b64encode(signed.encode()).decode()
