"""Traces as spans of OpenTelemetry. Only `span_exporter.py` knows its packages, which the extra `otel` installs."""
