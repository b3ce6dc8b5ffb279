"""`python -m heddle.cli`: the same as the console script `heddle`.

resources.Installation.command runs this file by its path.
"""

from __future__ import annotations

import sys

if not __package__:
    # Run by path, through sudo: root's Python does not search the user's own site-packages.
    import site
    from pathlib import Path

    site.addsitedir(str(Path(__file__).resolve().parents[2]))

from heddle.cli.front import main

sys.exit(main())
