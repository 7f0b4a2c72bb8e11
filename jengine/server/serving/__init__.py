"""What runs while the server does: the engine behind a queue, its health, its end."""
