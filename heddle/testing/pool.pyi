from heddle_plugins.testing.pool import *
