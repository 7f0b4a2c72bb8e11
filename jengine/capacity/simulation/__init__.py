"""Simulates replicas that are not here: real schedulers, caches and routers on a virtual clock.

In: a trace of requests, seconds per step by a model of time or a measured table. Out: latencies,
throughput, hit rates and cost. No model runs: an executor makes tokens up.

A simulation replaces time, and nothing else. `jengine simulate` runs the engine's `Scheduler` with
its cache and the router; an executor makes tokens up, and steps take what `jengine plan`'s model or
a measured table says (`replica.py` queues and reads plans as the heart does, at virtual times). No
line of theirs knows. Blocks that are copied, between prefill and decode or from host memory, are
allocated, published and freed under another name, and the scheduler then finds a cached prefix.
Decodes jump over steps between which nothing can happen, by the seam of multi-step decode
(`jumps.py`), and `StepTimes.ends` reckons their ends at once; tests compare every time with that of
single steps. `studies` keeps some results.
"""
