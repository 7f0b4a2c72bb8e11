"""Random small configs of every family, against transformers, on each implementation."""
