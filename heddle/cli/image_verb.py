"""The verb `image`: the images that nodes in containers start from."""

from __future__ import annotations

from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    help={
        "rebuild": "build both images again, even if they exist",
        "prune": "remove older images that nothing uses",
        "yes": "install missing system packages without asking",
    },
    root=True,
    lasting=True,
)
def image(out: Console, rebuild: bool = False, prune: bool = False, yes: bool = False) -> None:
    """Build the images of containerlab's nodes if they are missing, and list them."""
    from heddle.host.engine import images
    from heddle.views import labtext as views

    found = images.ensure_images(out.observer, rebuild=rebuild, yes=yes, ask=out.confirm)
    removed = images.prune() if prune else []
    out.result({"images": [each.to_json() for each in found], "removed": removed}, views.images_text(found, removed))
