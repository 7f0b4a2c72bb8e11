"""Simulates replicas that are not here: real schedulers, caches and routers on a virtual clock.

In: a trace of requests, seconds per step by a model of time or a measured table. Out: latencies,
throughput, hit rates and cost. No model runs: an executor makes tokens up.
"""
