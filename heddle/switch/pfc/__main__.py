"""`python -m heddle.switch.pfc < layout.json`: start a lab's agent and keeper."""

import os

from heddle.switch.pfc.keeper import main

os._exit(main())  # a fork of this process has no caller to return to
