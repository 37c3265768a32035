"""`python -m scalelab`: the command line where `scalelab` is not on the PATH."""

import sys

from scalelab.cli import main

sys.exit(main())
