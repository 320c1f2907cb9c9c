"""OpenTelemetry spans of the engine, the client and the server. Needs the extra [otel]; imported only when it is on."""
