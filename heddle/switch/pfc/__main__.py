"""`python -m heddle.switch.pfc < layout.json`: start a lab's agent and keeper."""

import os

from heddle.switch.pfc.keeper import main

os._exit(main())  # a forked process must not return to the interpreter of its parent
