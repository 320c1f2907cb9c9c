{{- define "duetime.name" -}}
{{- if contains "duetime" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-duetime{{ end }}
{{- end }}

{{- define "duetime.selector" -}}
app.kubernetes.io/name: duetime
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "duetime.labels" -}}
{{ include "duetime.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "duetime.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "duetime.storeUrl" -}}
secretKeyRef:
  {{- if .Values.store.existingSecret }}
  name: {{ .Values.store.existingSecret }}
  key: {{ .Values.store.key }}
  {{- else }}
  name: {{ include "duetime.name" . }}-store
  key: url
  {{- end }}
{{- end }}

{{- define "duetime.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "duetime.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}
