"""`python -m tvm_hopper`."""

import sys

from tvm_hopper.cli import main

if __name__ == "__main__":
    sys.exit(main())
