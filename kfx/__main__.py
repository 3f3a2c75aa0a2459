"""`python -m kfx`."""

import sys

from kfx.cli import main

sys.exit(main())
