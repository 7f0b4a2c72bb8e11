"""Anthropic's /v1/messages, implemented on chat completions."""
