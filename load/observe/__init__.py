"""Watch the service as an operator does: by Prometheus, Alertmanager and dashboards, while the causes of alerts occur."""
