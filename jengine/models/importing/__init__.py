"""Generic reader: imports decoders without a built-in family, from their tensors and
config.json."""
