"""Several processes as one engine: the same program on every host, plans from one of them.

In: plans and what processes must agree on. Out: the same in every process, or an error that names
the process at fault. Must not know requests' texts, the scheduler, or how a step is compiled.
"""
