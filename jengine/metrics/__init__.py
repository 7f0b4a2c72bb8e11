"""Statistics of front ends and cores in; Prometheus, Python objects, log lines and traces out.

Everything is measured once, where it happens. A scheduler's `Recorder` stamps events of requests
and counts the tokens of each step; a front end times what its clients see. A core's counters and
histograms are cumulative and travel as one struct, `Counts`, so a lost message loses nothing. A
request's times travel as durations with its first and last delta, so clocks of two processes are
never compared. An exporter reads both when /metrics is requested (`metrics/exporter.py`).
"""
