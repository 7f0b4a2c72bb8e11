"""Real clients against `jengine serve`: see README.md here."""
