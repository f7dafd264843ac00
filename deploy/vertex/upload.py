"""`upload`: uploads a model, or a new version of a model.

Source: docs/spec/deploy.md section 5.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from google.cloud.aiplatform_v1 import Model, UploadModelRequest, UploadModelResponse

from app.settings.option import BadOption
from deploy.vertex.call import Call
from deploy.vertex.container import add_container_options, container_spec
from deploy.vertex.labels import labels
from deploy.vertex.place import Place, new_model_id
from deploy.vertex.plan import Steps


def add_upload_options(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model-id", metavar="ID", help="the id of a new model")
    which.add_argument("--parent-model", metavar="ID", help="the model that gets a new version")
    parser.add_argument("--display-name", default="", metavar="TEXT", help="default: the id")
    parser.add_argument(
        "--alias", action="append", default=[], metavar="NAME", help="alias of the version, such as canary"
    )
    parser.add_argument("--no-default", action="store_true", help="keep the default version of the parent")
    parser.add_argument("--label", action="append", default=[], metavar="NAME=VALUE", help="label of the model")
    parser.add_argument(
        "--service-account", default="", metavar="EMAIL", help="identity that reads image and artifacts"
    )
    add_container_options(parser)


def upload(options: Namespace, place: Place) -> Steps:
    """The plan that uploads a model. Raises BadOption."""
    if options.no_default and not options.parent_model:
        raise BadOption.of("--no-default", "the first version of a model is its default")
    identity = options.parent_model or new_model_id(options.model_id)
    model = Model(
        display_name=options.display_name or identity.rpartition("/")[2],
        artifact_uri=options.artifact_uri,
        container_spec=container_spec(options),
        version_aliases=[*options.alias, *(["default"] if options.parent_model and not options.no_default else [])],
        labels=labels(options.label),
    )
    parent_model = place.model(options.parent_model) if options.parent_model else ""
    request = UploadModelRequest(
        parent=place.name,
        parent_model=parent_model,
        model_id="" if parent_model else identity,
        model=model,
        service_account=options.service_account,
    )
    title = f"upload a version of {identity}" if parent_model else f"upload the model {identity}"
    name = parent_model or place.model(identity)
    yield Call(
        title=title,
        request=request,
        stand_in=UploadModelResponse(model=name, model_version_id="1"),
        report=_report,
    )


def _report(answer: Any) -> str:
    return f"--model={answer.model}@{answer.model_version_id}"
