"""The HTTP server: the OpenAI API over one engine. Starlette, msgspec and uvicorn; no jax.

`app` has the table of routes, `run` the process. `http` knows no endpoint, `serving` no JSON; each
larger endpoint is a folder: request fields, answer texts, stream chunks, response types. The import
rules are in tests/test_import_rules.py.
"""
