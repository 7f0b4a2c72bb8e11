"""Talks with servers of OpenAI's HTTP API: one answer at a time, or many at once.

In: the address of a server, requests. Out: chunks of streamed answers. Must not know engines.
"""
