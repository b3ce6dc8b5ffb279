"""`from heddle.testing.pool import FabricRequest`: the pool of labs, of plugin testing."""

import sys

from heddle.base.plugins import alias

sys.modules[__name__] = alias(__name__)
