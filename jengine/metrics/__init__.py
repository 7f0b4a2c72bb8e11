"""Statistics of fronts and cores in; Prometheus, Python objects, log lines and traces out.

What is measured is measured once, where it happens. A scheduler's `Recorder` stamps events of
requests and counts the tokens of each step; a front times what its readers see. A core's counters
and histograms are cumulative and travel as one struct, `Counts`, so that a lost message loses
nothing, and a request's times travel as durations with its first and last delta: clocks of two
processes never meet. An exporter reads both when /metrics is requested
(`metrics/exporter.py`).
"""
