from heddle_plugins.testing.pool import *  # noqa: F403
