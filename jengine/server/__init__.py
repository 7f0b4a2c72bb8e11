"""The HTTP server: the OpenAI API over one engine. Starlette, msgspec and uvicorn; no jax.

`app` has the table of routes and `run` the process. `http` knows no endpoint, `serving` no JSON;
each larger endpoint is a folder: its fields, its texts, its chunks, its types. Who may import whom
is in tests/test_import_rules.py.
"""
