"""The verb `image`: the images that nodes in containers start from."""

from __future__ import annotations

from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    help={
        "rebuild": "rebuild both images, even if they exist",
        "prune": "remove older ones that nothing uses",
        "yes": "install missing system packages unasked",
    },
    root=True,
    lasting=True,
)
def image(out: Console, rebuild: bool = False, prune: bool = False, yes: bool = False) -> None:
    """The images that containerlab's nodes start from: build what is missing, and say what is there."""
    from heddle.host.engine import images
    from heddle.views import labtext as views

    found = images.ensure_images(out.observer, rebuild=rebuild, yes=yes, ask=out.confirm)
    removed = images.prune() if prune else []
    out.result({"images": [each.to_json() for each in found], "removed": removed}, views.images_text(found, removed))
