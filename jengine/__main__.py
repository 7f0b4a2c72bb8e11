"""`python -m jengine` is the same as `jengine`."""

import sys

from jengine.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
