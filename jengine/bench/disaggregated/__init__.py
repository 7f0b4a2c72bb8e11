"""Disaggregated prefill and decode servers behind a router: behaviour under kills, and speed
against a single server."""
