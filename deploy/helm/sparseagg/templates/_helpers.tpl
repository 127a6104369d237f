{{- define "sparseagg.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sparseagg.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sparseagg.metadata" -}}
name: {{ include "sparseagg.name" . }}
labels:
  {{- include "sparseagg.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* The claim of --data-dir: the one that is given, or the chart's own; empty without a volume. */ -}}
{{- define "sparseagg.claim" -}}
{{- if .Values.data.claim -}}
{{- .Values.data.claim -}}
{{- else if .Values.data.size -}}
{{- include "sparseagg.name" . -}}
{{- end -}}
{{- end -}}

{{- /* Memory of the pod: --memory-limit and a tenth more, rounded up. */ -}}
{{- define "sparseagg.memory" -}}
{{ div (add (mul .Values.memoryLimitMiB 11) 9) 10 }}Mi
{{- end -}}
