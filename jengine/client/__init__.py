"""Client of OpenAI-compatible servers: one request at a time, or many concurrently.

In: a server's address, requests. Out: streamed response chunks. Must not know engines.
"""
