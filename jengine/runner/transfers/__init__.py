"""Copies of cache blocks between the devices and the host's memory, queued with the steps."""
