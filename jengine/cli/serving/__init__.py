"""What `jengine serve` does: flags, log, one process or several, hosts without an API."""
