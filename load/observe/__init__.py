"""Watch the service as an operator does, by Prometheus, Alertmanager and dashboards, while every alert's cause is brought about."""
