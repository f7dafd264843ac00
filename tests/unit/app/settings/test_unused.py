from __future__ import annotations

import pytest

from trident.adapters.common.options import BadValue
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.server import SERVER_OPTIONS

BY_FLAG = {each.flag: each for each in UNUSED_OPTIONS}
# Every option of tritonserver's command line.
TRITONSERVER = """
id exit-timeout-secs model-repository exit-on-error disable-auto-complete-config strict-model-config strict-readiness
model-control-mode repository-poll-secs load-model model-config-name model-load-thread-count model-load-retry-count
model-namespacing enable-peer-access allow-http http-address http-port reuse-http-port http-header-forward-pattern
http-thread-count http-max-input-size http-restricted-api allow-grpc grpc-address grpc-port reuse-grpc-port
grpc-header-forward-pattern grpc-infer-thread-count grpc-infer-allocation-pool-size grpc-max-response-pool-size
grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert grpc-server-key grpc-root-cert
grpc-infer-response-compression-level grpc-keepalive-time grpc-keepalive-timeout grpc-keepalive-permit-without-calls
grpc-http2-max-pings-without-data grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes
grpc-max-connection-age grpc-max-connection-age-grace grpc-restricted-protocol log-verbose log-info log-warning
log-error log-format log-file allow-metrics allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port
metrics-interval-ms metrics-config trace-config trace-file trace-level trace-rate trace-count trace-log-frequency
cache-config cache-directory response-cache-byte-size rate-limit rate-limit-resource pinned-memory-pool-byte-size
cuda-memory-pool-byte-size cuda-virtual-address-size min-supported-compute-capability buffer-manager-thread-count
host-policy model-load-gpu-limit allow-client-shm backend-directory backend-config repoagent-directory allow-sagemaker
sagemaker-port sagemaker-safe-port-range sagemaker-thread-count allow-vertex-ai vertex-ai-port vertex-ai-thread-count
vertex-ai-default-model
"""


def test_every_option_of_tritonserver_is_known_once() -> None:
    served = [each.flag for each in SERVER_OPTIONS.values() if each.flag and not each.own]
    assert sorted([*served, *BY_FLAG]) == sorted(TRITONSERVER.split())


@pytest.mark.parametrize(
    ("flag", "text", "reason"),
    [
        ("grpc-infer-allocation-pool-size", "x", "Invalid option value. Got x"),
        ("grpc-max-response-pool-size", "0", "Error: --grpc-max-response-pool-size must be greater than 0."),
        ("enable-peer-access", "perhaps", "invalid value for bool option: perhaps"),
        (
            "host-policy",
            "cpu=1",
            "--host-policy option format is '<policy name>,<setting>=<value>'. Got cpu=1",
        ),
    ],
)
def test_an_invalid_value_of_an_unused_option_is_refused(flag: str, text: str, reason: str) -> None:
    with pytest.raises(BadValue) as refusal:
        BY_FLAG[flag].kind.parse(text)
    assert str(refusal.value) == reason


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("grpc-max-response-pool-size", "1"),
        ("cuda-memory-pool-byte-size", "0:67108864"),
    ],
)
def test_a_valid_value_of_an_unused_option_passes(flag: str, text: str) -> None:
    BY_FLAG[flag].kind.parse(text)
