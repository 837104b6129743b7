{{- define "tidemark.settings" -}}
{{ .Values.settings | default (.Files.Get "tidemark.toml") }}
{{- end }}

{{- define "tidemark.labels" -}}
{"app.kubernetes.io/name": "tidemark", "app.kubernetes.io/instance": {{ .Release.Name | quote }}}
{{- end }}

{{- /* Two pods of the service are never on one node. */}}
{{- define "tidemark.apart" -}}
{{- $labels := mergeOverwrite (include "tidemark.labels" . | fromJson) (dict "app.kubernetes.io/component" "service") }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) }}
{{- dict "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) | toJson }}
{{- end }}
