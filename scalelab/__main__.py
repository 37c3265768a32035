"""`python -m scalelab`."""

import sys

from scalelab.cli import main

sys.exit(main())
