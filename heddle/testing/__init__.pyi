from heddle_plugins.testing import *  # noqa: F403
