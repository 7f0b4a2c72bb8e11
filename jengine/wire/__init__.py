"""Messages between processes of one engine, as bytes."""
