"""Work of `jengine serve`: flags, logs, one process or several, headless nodes."""
