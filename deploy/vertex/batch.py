"""`batch`: a batch prediction job.

Source: docs/spec/vertex.md section A5.
"""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from google.cloud.aiplatform_v1 import (
    BatchDedicatedResources,
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

from deploy.vertex.api import CallFailed, Vertex, pairs
from deploy.vertex.deploy import machine, replicas
from trident.adapters.common.options import BadOption

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


def act(vertex: Vertex, options: Namespace) -> None:
    name = f"{vertex.place}/batchPredictionJobs/JOB"
    job: Any = vertex.call(
        f"start the job {options.name}",
        CreateBatchPredictionJobRequest(parent=vertex.place, batch_prediction_job=_job(vertex, options)),
        stand_in=BatchPredictionJob(name=name),
        report=lambda made: str(made.name),
    )
    name = job.name
    while options.wait and job.state not in _ENDED:
        job = vertex.call(
            "get the progress of the job",
            GetBatchPredictionJobRequest(name=name),
            stand_in=BatchPredictionJob(state=JobState.JOB_STATE_SUCCEEDED),
            report=_progress,
            after_s=_EVERY_S,
        )


def _job(vertex: Vertex, options: Namespace) -> BatchPredictionJob:
    least, most = replicas(options)
    source = BatchPredictionJob.InputConfig(instances_format=options.format)
    if options.format == "bigquery":
        source.bigquery_source = BigQuerySource(input_uri=options.input[0])
    else:
        source.gcs_source = GcsSource(uris=options.input)
    if options.output.startswith("bq://"):
        table = BigQueryDestination(output_uri=options.output)
        output = BatchPredictionJob.OutputConfig(predictions_format="bigquery", bigquery_destination=table)
    else:
        folder = GcsDestination(output_uri_prefix=options.output)
        output = BatchPredictionJob.OutputConfig(predictions_format="jsonl", gcs_destination=folder)
    given = {
        "instance_type": options.instance_type,
        "key_field": options.key_field,
        "included_fields": options.included_fields.split(",") if options.included_fields else [],
    }
    tuning = ManualBatchTuningParameters(batch_size=options.batch_size) if options.batch_size else None
    job = BatchPredictionJob(
        display_name=options.name,
        model=vertex.model(options.model),
        input_config=source,
        instance_config=BatchPredictionJob.InstanceConfig(**given) if any(given.values()) else None,
        output_config=output,
        dedicated_resources=BatchDedicatedResources(
            machine_spec=machine(options), starting_replica_count=least, max_replica_count=most
        ),
        manual_batch_tuning_parameters=tuning,
        service_account=options.service_account,
        labels=pairs(options.label, "--label"),
    )
    if options.parameters:
        try:
            job.model_parameters = json_format.ParseDict(json.loads(options.parameters), Value())
        except ValueError as error:
            raise BadOption.of("--parameters", f"it takes a JSON document: {error}") from None
    return job


def _progress(job: BatchPredictionJob) -> str:
    """The progress of a job. Raises CallFailed if it has ended without success."""
    state = JobState(job.state).name.removeprefix("JOB_STATE_").lower()
    stats = job.completion_stats
    counted = f"{state}: {stats.successful_count} predicted, {stats.failed_count} failed"
    if job.state not in _ENDED:
        return counted
    if job.state == JobState.JOB_STATE_SUCCEEDED:
        info = job.output_info
        return f"{counted}\n{info.gcs_output_directory or info.bigquery_output_dataset}"
    details = [job.error.message, *(each.message for each in job.partial_failures)]
    raise CallFailed("\n".join([counted, *(text for text in details if text)]))
