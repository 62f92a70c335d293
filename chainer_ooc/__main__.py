"""``python -m chainer_ooc``: for where the folder of scripts is not on the PATH."""

import sys

from chainer_ooc.cli import main

sys.exit(main())
