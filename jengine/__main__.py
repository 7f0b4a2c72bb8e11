"""`python -m jengine` is the same as `jengine`."""

from jengine.cli.main import entry

if __name__ == "__main__":
    entry()
