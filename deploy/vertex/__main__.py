"""`python -m deploy.vertex`."""

import sys

from deploy.vertex.command import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], sys.stdout, sys.stderr))
