"""Runs plans in worker processes: one connection between the driver and the first worker.

Must not know who starts the workers.
"""
