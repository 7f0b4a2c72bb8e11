"""One file per model family: what it reads from config.json, and where it differs from Llama."""
