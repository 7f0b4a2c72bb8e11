"""Engines whose cores run in separate processes: starting, finding and joining these."""
