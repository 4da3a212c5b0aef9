"""`python -m fractus_core` is `fractus`."""

from __future__ import annotations

import sys

from fractus_core.cli.main import main

sys.exit(main())
