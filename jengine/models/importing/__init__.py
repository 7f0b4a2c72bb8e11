"""Reads decoders that have no family here: by what their tensors and config.json show."""
