"""`batch`: a batch prediction job.

Source: docs/spec/vertex.md section A5.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from typing import Any

from google.cloud.aiplatform_v1 import (
    BatchPredictionJob,
    BigQueryDestination,
    BigQuerySource,
    CreateBatchPredictionJobRequest,
    GcsDestination,
    GcsSource,
    GetBatchPredictionJobRequest,
    JobState,
    ManualBatchTuningParameters,
)
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value

from deploy.vertex.container import add_machine_options, batch_resources
from deploy.vertex.options import labels
from deploy.vertex.plan import Call, CheckFailed, Context, Place, Steps
from trident.adapters.common.options import BadOption

FORMATS = ("jsonl", "csv", "file-list", "tf-record", "tf-record-gzip", "bigquery")
_TABLE = "bq://"
_FOLDER = "gs://"
_EVERY_S = 30.0
_ENDED = frozenset(
    {
        JobState.JOB_STATE_SUCCEEDED,
        JobState.JOB_STATE_PARTIALLY_SUCCEEDED,
        JobState.JOB_STATE_FAILED,
        JobState.JOB_STATE_CANCELLED,
        JobState.JOB_STATE_EXPIRED,
    }
)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="ID[@VERSION]", help="the model")
    parser.add_argument("--name", required=True, metavar="TEXT", help="name of the job")
    parser.add_argument("--input", action="append", required=True, metavar="URI", help="gs:// files or a bq:// table")
    parser.add_argument("--output", required=True, metavar="URI", help="a gs:// folder or a bq:// data set")
    parser.add_argument("--format", required=True, choices=FORMATS, help="format of the input")
    parser.add_argument("--instance-type", default="", choices=["array", "object"], help="the JSON form of an instance")
    parser.add_argument(
        "--key-field", default="", metavar="NAME", help="field that identifies the instance and is not sent"
    )
    parser.add_argument("--included-fields", default="", metavar="A,B", help="the fields to send, in this order")
    parser.add_argument("--excluded-fields", default="", metavar="A,B", help="the fields not to send")
    parser.add_argument("--parameters", default="", metavar="JSON", help="parameters of every request")
    parser.add_argument("--batch-size", type=int, default=0, metavar="N", help="instances per request; default: 64")
    parser.add_argument("--service-account", default="", metavar="EMAIL", help="identity of the container")
    parser.add_argument("--label", action="append", default=[], metavar="NAME=VALUE", help="label of the job")
    parser.add_argument("--wait", action="store_true", help="wait until the job has ended")
    add_machine_options(parser, least="--replicas")


def steps(options: Namespace, at: Context) -> Steps:
    """The plan of a batch prediction job. Raises BadOption."""
    place = at.place
    stand_in = BatchPredictionJob(name=f"{place.name}/batchPredictionJobs/JOB", state=JobState.JOB_STATE_SUCCEEDED)
    job: Any = yield Call(
        title=f"start the job {options.name}",
        request=CreateBatchPredictionJobRequest(parent=place.name, batch_prediction_job=_job(options, place)),
        stand_in=BatchPredictionJob(name=stand_in.name),
        report=lambda made: str(made.name),
    )
    name = job.name
    while options.wait and job.state not in _ENDED:
        job = yield Call(
            title="get the progress of the job",
            request=GetBatchPredictionJobRequest(name=name),
            stand_in=stand_in,
            report=_progress,
            after_s=_EVERY_S,
        )


def _job(options: Namespace, place: Place) -> BatchPredictionJob:
    if options.batch_size < 0:
        raise BadOption.of("--batch-size", "it takes 1 or more")
    tuning = ManualBatchTuningParameters(batch_size=options.batch_size) if options.batch_size else None
    job = BatchPredictionJob(
        display_name=options.name,
        model=place.model(options.model),
        input_config=_input(options),
        instance_config=_instance_config(options),
        output_config=_output(options),
        dedicated_resources=batch_resources(options),
        manual_batch_tuning_parameters=tuning,
        service_account=options.service_account,
        labels=labels(options.label),
    )
    if options.parameters:
        job.model_parameters = _parameters(options.parameters)
    return job


def _input(options: Namespace) -> BatchPredictionJob.InputConfig:
    scheme = _TABLE if options.format == "bigquery" else _FOLDER
    for uri in options.input:
        if not uri.startswith(scheme):
            raise BadOption.of("--input", f"{options.format} needs an address at {scheme}, not '{uri}'")
    made = BatchPredictionJob.InputConfig(instances_format=options.format)
    if scheme == _FOLDER:
        made.gcs_source = GcsSource(uris=options.input)
        return made
    if len(options.input) > 1:
        raise BadOption.of("--input", "a job can read only one table")
    made.bigquery_source = BigQuerySource(input_uri=options.input[0])
    return made


def _output(options: Namespace) -> BatchPredictionJob.OutputConfig:
    uri = options.output
    if uri.startswith(_TABLE):
        destination = BigQueryDestination(output_uri=uri)
        return BatchPredictionJob.OutputConfig(predictions_format="bigquery", bigquery_destination=destination)
    if not uri.startswith(_FOLDER):
        raise BadOption.of("--output", f"it takes a gs:// folder or a bq:// data set, not '{uri}'")
    folder = GcsDestination(output_uri_prefix=uri)
    return BatchPredictionJob.OutputConfig(predictions_format="jsonl", gcs_destination=folder)


def _instance_config(options: Namespace) -> BatchPredictionJob.InstanceConfig | None:
    if options.included_fields and options.excluded_fields:
        raise BadOption.of("--excluded-fields", "use either --included-fields or --excluded-fields")
    if options.instance_type and options.format not in ("jsonl", "bigquery"):
        raise BadOption.of("--instance-type", f"it does not apply to {options.format}")
    if (options.included_fields or options.excluded_fields) and options.format in ("csv", "file-list"):
        option = "--included-fields" if options.included_fields else "--excluded-fields"
        raise BadOption.of(option, f"it does not apply to {options.format}")
    if options.key_field and options.format in ("file-list", "tf-record", "tf-record-gzip"):
        raise BadOption.of("--key-field", f"the instances of {options.format} have no fields")
    given = {
        "instance_type": options.instance_type,
        "key_field": options.key_field,
        "included_fields": _names(options.included_fields),
        "excluded_fields": _names(options.excluded_fields),
    }
    return BatchPredictionJob.InstanceConfig(**given) if any(given.values()) else None


def _names(text: str) -> list[str]:
    return text.split(",") if text else []


def _parameters(text: str) -> Value:
    try:
        return json_format.ParseDict(json.loads(text), Value())
    except (ValueError, json_format.ParseError) as error:
        raise BadOption.of("--parameters", f"it takes a JSON document: {error}") from None


def _progress(job: BatchPredictionJob) -> str:
    """The progress of a job. Raises CheckFailed if it has ended without success."""
    state = JobState(job.state).name.removeprefix("JOB_STATE_").lower()
    stats = job.completion_stats
    counted = f"{state}: {stats.successful_count} predicted, {stats.failed_count} failed"
    if job.state not in _ENDED:
        return counted
    if job.state == JobState.JOB_STATE_SUCCEEDED:
        info = job.output_info
        return f"{counted}\n{info.gcs_output_directory or info.bigquery_output_dataset}"
    details = [job.error.message, *(each.message for each in job.partial_failures)]
    raise CheckFailed("\n".join([counted, *(text for text in details if text)]))
