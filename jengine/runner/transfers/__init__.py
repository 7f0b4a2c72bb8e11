"""Copies of cache blocks between device and host memory, queued with the steps."""
