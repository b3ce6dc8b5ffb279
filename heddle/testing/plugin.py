"""`pytest -p heddle.testing.plugin`: the fixtures, of plugin testing."""

import sys

from heddle.base.plugins import alias

sys.modules[__name__] = alias(__name__)
