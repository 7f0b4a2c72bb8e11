"""OpenAI's /v1/responses, implemented on chat completions."""
