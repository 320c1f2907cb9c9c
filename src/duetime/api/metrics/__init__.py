"""What is shown on /metrics: the numbers of all processes of a server, in Prometheus's text format."""
