"""OpenVINO models on the CPU, on the instance threads.

Source: docs/spec/framework-backends.md section 6.6.
"""

import sys

# Its import sends usage to Google Analytics, by a fork of this process, unless this package is missing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
