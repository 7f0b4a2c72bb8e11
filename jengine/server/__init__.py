"""The HTTP server: the OpenAI API over one engine. Starlette, msgspec and uvicorn; no jax."""
