"""Runs `python -m deploy.sagemaker` within the test and parses its dry run."""

from __future__ import annotations

import io
import json
from typing import Any, NamedTuple

from deploy.sagemaker.__main__ import main

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/trident:0.2.0"
ROLE = "arn:aws:iam::123456789012:role/trident"
ARCHIVE = "s3://models/digits/1/model.tar.gz"
# The latest instances that moto knows.
INSTANCE = "ml.c5.xlarge"
MODEL = ("--image", IMAGE, "--role", ROLE)
REAL_TIME = (*MODEL, "--model-data", ARCHIVE, "--instance-type", INSTANCE)
MULTI_MODEL = (*MODEL, "--kind=multi-model", "--model-data=s3://models/shelf/", "--instance-type", INSTANCE)
ASYNC = (*REAL_TIME, "--kind=async", "--output=s3://data/answers/")
SERVERLESS = (*MODEL, "--kind=serverless", "--model-data", ARCHIVE)
BATCH = (*REAL_TIME, "--kind=batch", "--input=s3://data/in/", "--output=s3://data/out/")


class Result(NamedTuple):
    status: int
    out: str
    errors: str


class Printed(NamedTuple):
    """One call of a dry run; `goal` is the goal of a wait, "" for other calls."""

    name: str
    parameters: dict[str, Any]
    goal: str


def run(*arguments: str) -> Result:
    out, errors = io.StringIO(), io.StringIO()
    status = main(arguments, out, errors)
    return Result(status, out.getvalue(), errors.getvalue())


def dry_run(*arguments: str) -> list[Printed]:
    """The calls of a valid plan. On instances with GPUs the errors say which host image was chosen."""
    result = run(*arguments, "--dry-run")
    assert result.status == 0
    assert result.errors == "" or result.errors.startswith("host image ")
    return [_printed(line) for line in result.out.splitlines()]


def refusal(*arguments: str) -> str:
    """The error text of a dry run with invalid settings; it must print no call."""
    result = run(*arguments, "--dry-run")
    assert (result.status, result.out) == (2, "")
    return result.errors


def only(calls: list[Printed], name: str) -> dict[str, Any]:
    """The parameters of the only call of that name."""
    (found,) = [call.parameters for call in calls if call.name == name]
    return found


def _printed(line: str) -> Printed:
    name, _, rest = line.partition(" ")
    parameters, end = json.JSONDecoder().raw_decode(rest)
    return Printed(name, parameters, rest[end:].removeprefix("  # "))
