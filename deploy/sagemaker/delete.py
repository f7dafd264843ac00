"""`delete`: everything that any action here may have created for an endpoint, including the rest of earlier updates.

Missing resources are skipped, and a failure does not stop the others. If the endpoint cannot be deleted, all ends,
because its configuration must stay as well.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from deploy.sagemaker.aws import SAGEMAKER, Aws, Unknown, is_ours
from deploy.sagemaker.create import ALARMS
from deploy.sagemaker.scale import stop_scaling


def delete(aws: Aws, given: Namespace) -> None:
    name = given.name
    stop_scaling(aws, name, best_effort=True)
    _delete_alarms(aws, name)
    _delete_listed(aws, name, "TransformJob", "StopTransformJob", "TransformJobSummaries", StatusEquals="InProgress")
    # Its inference component has to be gone before the endpoint can be deleted.
    if (component := given.settings.get("CreateInferenceComponent")) is not None:
        names = {"InferenceComponentName": component.get("InferenceComponentName", name)}
        aws.call(SAGEMAKER, "DeleteInferenceComponent", names, best_effort=True)
        status = "InferenceComponentStatus"
        aws.wait("DescribeInferenceComponent", names, status, None, ("Deleting",), given.wait_secs)
    endpoint = {"EndpointName": name}
    aws.call(SAGEMAKER, "DeleteEndpoint", endpoint, best_effort=True)
    aws.wait("DescribeEndpoint", endpoint, "EndpointStatus", None, ("Deleting",), given.wait_secs)
    _delete_listed(aws, name, "EndpointConfig", "DeleteEndpointConfig", "EndpointConfigs")
    _delete_listed(aws, name, "Model", "DeleteModel", "Models")


def _delete_alarms(aws: Aws, endpoint: str) -> None:
    names = {"AlarmNames": [f"{endpoint}-{what}" for what in ALARMS]}
    stand_in = {"MetricAlarms": [{"AlarmName": Unknown("<each AlarmName>")}]}
    found = aws.call("cloudwatch", "DescribeAlarms", names, stand_in=stand_in, best_effort=True)
    for alarm in found.get("MetricAlarms", ()):
        aws.call("cloudwatch", "DeleteAlarms", {"AlarmNames": [alarm["AlarmName"]]}, best_effort=True)


def _delete_listed(aws: Aws, endpoint: str, what: str, operation: str, members: str, **only: Any) -> None:
    """Delete all listed resources. The API also lists names of endpoints with longer names; those are left out."""
    key = f"{what}Name"
    stand_in = {members: [{key: Unknown(f"<each {key} like {endpoint}-HASH>")}]}
    parameters = {"NameContains": endpoint, **only}
    found = aws.call(SAGEMAKER, f"List{what}s", parameters, stand_in=stand_in, best_effort=True)
    for each in found.get(members, ()):
        if is_ours(each[key], endpoint):
            aws.call(SAGEMAKER, operation, {key: each[key]}, best_effort=True)
