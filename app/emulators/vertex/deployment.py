"""A model deployed to an endpoint: the ids and resource names of both.

Source: docs/spec/vertex.md section A1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.emulators.vertex.limits import EndpointType

_CREATED = "2026-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Ids are texts of digits. `predict_route` and `health_route` are "" for the platform's default routes.

    `is_invoked`: the model has an invoke route prefix, so callers reach every path of the container by `invoke` only.
    """

    project_number: str = "123456789012"
    location: str = "us-central1"
    endpoint_id: str = "1234567890123456789"
    deployed_model_id: str = "2345678901234567890"
    model_id: str = "3456789012345678901"
    model_version_id: str = "1"
    display_name: str = "model"
    endpoint_type: EndpointType = EndpointType.DEDICATED
    is_invoked: bool = False
    predict_route: str = ""
    health_route: str = ""

    @property
    def endpoint(self) -> str:
        """The resource name of the endpoint."""
        return f"{self._location}/endpoints/{self.endpoint_id}"

    @property
    def model(self) -> str:
        """The resource name of the model."""
        return f"{self._location}/models/{self.model_id}"

    @property
    def predict_path(self) -> str:
        return self.predict_route or f"{self.health_form}:predict"

    @property
    def health_path(self) -> str:
        return self.health_route or self.health_form

    @property
    def health_form(self) -> str:
        return f"/v1/endpoints/{self.endpoint_id}/deployedModels/{self.deployed_model_id}"

    @property
    def _location(self) -> str:
        return f"projects/{self.project_number}/locations/{self.location}"

    def resource(self, address: str) -> dict[str, Any]:
        """The endpoint resource that the API returns; `address` is a dedicated endpoint's, `host:port`."""
        dedicated = {"dedicatedEndpointEnabled": True, "dedicatedEndpointDns": address}
        return {
            "name": self.endpoint,
            "displayName": self.display_name,
            "deployedModels": [
                {
                    "id": self.deployed_model_id,
                    "model": self.model,
                    "modelVersionId": self.model_version_id,
                    "displayName": self.display_name,
                    "createTime": _CREATED,
                    "dedicatedResources": {"minReplicaCount": 1, "maxReplicaCount": 1},
                }
            ],
            "trafficSplit": {self.deployed_model_id: 100},
            "createTime": _CREATED,
            "updateTime": _CREATED,
            **(dedicated if self.endpoint_type is EndpointType.DEDICATED else {}),
        }
