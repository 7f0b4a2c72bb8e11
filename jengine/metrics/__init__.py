"""Statistics of fronts and cores in; Prometheus, Python objects, log lines and traces out."""
