{{/* The labels that select the pods. */}}
{{- define "trident.selector" -}}
app.kubernetes.io/name: trident
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Name and labels of every object. */}}
{{- define "trident.metadata" -}}
name: {{ .Release.Name }}
labels:
  {{- include "trident.labels" . | nindent 2 }}
{{- end }}

{{- define "trident.labels" -}}
{{ include "trident.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "trident.serviceAccount" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{/* The server's environment: what the chart sets, then what the values say. */}}
{{- define "trident.environment" -}}
{{- $set := dict
  "TRIDENT_HTTP_PORT" "8000"
  "TRIDENT_GRPC_PORT" "8001"
  "TRIDENT_METRICS_PORT" "8002"
  "TRIDENT_LOG_FORMAT" "json"
  "TRIDENT_METRICS_CONFIG" "histogram_latencies=true"
  "TRIDENT_MODEL_REPOSITORY" (.Values.models.repository | default "/models")
  "TRIDENT_MODEL_CACHE_DIRECTORY" "/var/cache/trident/models"
  "TRIDENT_MODEL_CACHE_BYTES" (.Values.models.cache.bytes | int64)
  "TRIDENT_SHUTDOWN_GRACE_SECS" .Values.drain.grace
  "TRIDENT_EXIT_TIMEOUT_SECS" .Values.drain.exit
-}}
{{- if .Values.gpus }}{{ $_ := set $set "CUDA_CACHE_PATH" "/var/cache/trident/cuda" }}{{ end }}
{{- if .Values.console }}{{ $_ := set $set "TRIDENT_CONSOLE" "true" }}{{ end }}
{{- if .Values.inferencePool.picker }}{{ $_ := set $set "TRIDENT_HTTP_METRICS" "true" }}{{ end }}
{{- if .Values.tokens.secret }}
{{- $_ := set $set "TRIDENT_AUTH_TOKEN_FILE" "/etc/trident/tokens/tokens" }}
{{- $_ := set $set "TRIDENT_AUTH_TOKEN_SCOPE" .Values.tokens.scope }}
{{- end }}
{{- if .Values.tls.secret }}
{{- range $port := list "HTTP" "GRPC" }}
{{- $_ := set $set (printf "TRIDENT_%s_USE_SSL" $port) "true" }}
{{- $_ := set $set (printf "TRIDENT_%s_SERVER_CERT" $port) "/etc/trident/tls/tls.crt" }}
{{- $_ := set $set (printf "TRIDENT_%s_SERVER_KEY" $port) "/etc/trident/tls/tls.key" }}
{{- end }}
{{- end }}
{{- /* A number is a float64, which toString would write as 1e+07. */}}
{{- range $name, $value := mergeOverwrite $set .Values.environment .Values.settings }}
{{ $name }}: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- end }}

{{/* What a request to the HTTP port looks like, for a probe of a path. */}}
{{- define "trident.get" -}}
httpGet: { path: {{ .path }}, port: http{{ if .root.Values.tls.secret }}, scheme: HTTPS{{ end }} }
{{- end }}
