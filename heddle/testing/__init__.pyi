from heddle_plugins.testing import *
