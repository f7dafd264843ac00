from __future__ import annotations

from tritonclient.grpc.service_pb2 import (
    LogSettingsRequest,
    LogSettingsResponse,
    TraceSettingRequest,
    TraceSettingResponse,
)

from trident.core.frontend.admin import shown_settings
from trident.core.grpc.admin_messages import TraceCall, log_message, read_log_call, read_trace_call, trace_message
from trident.core.observability.tracing.settings import TraceOptions
from trident.core.observability.tracing.tracer import Tracer


def test_a_call_may_change_settings_or_only_read_them() -> None:
    assert read_trace_call(b"") == TraceCall("", {})
    change = TraceSettingRequest(model_name="m", settings={"trace_level": {"value": []}})
    assert read_trace_call(change.SerializeToString()) == TraceCall("m", {"trace_level": []})
    assert read_log_call(b"") == {}
    values = {"log_info": {"bool_param": False}, "log_verbose_level": {"uint32_param": 0}, "log_format": {}}
    assert read_log_call(LogSettingsRequest(settings=values).SerializeToString()) == {
        "log_info": False,
        "log_verbose_level": 0,
    }


def test_the_settings_of_trace() -> None:
    settings = TraceSettingResponse.FromString(trace_message(Tracer(TraceOptions()).settings())).settings
    assert {key: list(setting.value) for key, setting in settings.items()} == {
        "trace_level": ["OFF"],
        "trace_rate": ["1000"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": [""],
        "trace_mode": ["triton"],
    }


def test_the_settings_of_the_log_have_their_types() -> None:
    shown = shown_settings()
    settings = LogSettingsResponse.FromString(log_message(shown)).settings
    choices = {key: setting.WhichOneof("parameter_choice") for key, setting in settings.items()}
    assert choices == {
        "log_file": "string_param",
        "log_info": "bool_param",
        "log_warning": "bool_param",
        "log_error": "bool_param",
        "log_verbose_level": "uint32_param",
        "log_format": "string_param",
    }
    assert {key: getattr(settings[key], choices[key]) for key in choices} == shown
