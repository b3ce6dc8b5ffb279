"""The place that the user chose: `--place`, else the config file's, else this machine."""

from __future__ import annotations

from heddle.places.call import Place
from heddle.places.config import config_path, read_config
from heddle.places.kinds import place_named


def place_for(typed: str | None) -> Place | None:
    """The place that was typed, else that of the config file; None: this machine.

    Raises InputError when the text names no place, or the config file is wrong.
    """
    if typed is not None:
        return place_named(typed, "")
    path = config_path()
    if path is None:
        return None
    config = read_config(path)
    return place_named(config.place, config.where("place"))
