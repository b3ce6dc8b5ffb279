"""The verb `vm`: the virtual machine in which `--on vm` runs verbs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base.extras import SSH
from heddle.base.problems import InputError, MachineError, Problem, Problems, did_you_mean
from heddle.cli.argv import Option, Options
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle_plugins.places.vm.guest import Guest
    from heddle_plugins.places.vm.image import VmImage

ACTIONS: Final = ("up", "status", "ssh", "down", "build")
_BOOTS: Final = ("up", "ssh")
_HELP: Final[Options] = {
    "action": Option("up, status, ssh, down or build (the image only)", "heddle_plugins.places.verbs:ACTIONS"),
    "command": "with ssh: the command to run in the VM; without it, a shell",
    "kernel": "backports (default), stable or oldstable: a kernel package of Debian; with down: only this VM",
    "memory": "MiB of the VM",
    "cpus": "processors of the VM (default: all of this machine, four at most)",
    "idle": "minutes without a verb after which the VM ends; 0: never",
    "images": "with down: remove the cached images, too",
    "rebuild": "with up or build: make the image again, with the Debian packages of today",
}


def needed_packages(typed: Mapping[str, Any]) -> Sequence[str]:
    """QEMU to boot, and the tools that make an image, if the cache does not have it or it is made again."""
    from heddle.host import packages
    from heddle_plugins.places.vm.guest import guests
    from heddle_plugins.places.vm.guest import needed_packages as of_guest
    from heddle_plugins.places.vm.recipe import DEFAULT, kernel_named

    action = typed["action"]
    if action not in (*_BOOTS, "build") or (action == "ssh" and guests()):
        return ()
    needed = of_guest(kernel_named(typed["kernel"] or DEFAULT), fresh=typed["rebuild"])
    return needed if action in _BOOTS else needed[len(packages.VM) :]


def needed_extras(typed: Mapping[str, Any]) -> Sequence[str]:
    """Paramiko makes the keys of a boot."""
    return (SSH,) if typed["action"] in _BOOTS else ()


@verb(
    group="Elsewhere",
    help=_HELP,
    positional=["action"],
    rest="command",
    lasting=True,
    packages=needed_packages,
    extras=needed_extras,
)
def vm(
    out: Console,
    action: str = "status",
    kernel: str = "",
    memory: int = 2048,
    cpus: int | None = None,
    idle: int = 60,
    images: bool = False,
    rebuild: bool = False,
    command: Sequence[str] = (),
) -> None:
    """Start, show, enter or end the VM: Debian's full kernel in QEMU, for verbs with --on vm.

    The first start makes an image; this takes a few minutes, and the image is kept. Starting the VM needs no root.
    """
    from heddle_plugins.places.vm.recipe import kernel_named

    if action not in ACTIONS:
        raise InputError(Problem("", f"vm {action[:60]}", "is not an action of vm", did_you_mean(action, ACTIONS)))
    if command and action != "ssh":
        hint = f"use ./inv vm ssh -- {command[0][:60]} to run a command in the VM"
        raise InputError(Problem("", " ".join(command)[:60], f"is not an argument of vm {action}", hint))
    if kernel:
        kernel_named(kernel)
    match action:
        case "status":
            _status(out)
        case "down":
            _down(out, kernel, images=images)
        case "build":
            _build(out, kernel, rebuild=rebuild)
        case "up":
            _up(out, kernel, memory, 0 if cpus is None else cpus, idle, rebuild=rebuild)
        case _:
            _ssh(out, kernel, command)


def _up(out: Console, kernel: str, memory: int, cpus: int, idle: int, *, rebuild: bool) -> None:
    from heddle_plugins.places.vm import guest as guests
    from heddle_plugins.places.vm.image import ensure_image
    from heddle_plugins.places.vm.recipe import DEFAULT, kernel_named, place_name

    problems = Problems()
    for flag, value, least in (("--memory", memory, guests.LEAST_MEMORY), ("--cpus", cpus, 0), ("--idle", idle, 0)):
        if value < least:
            problems.add(where="", what=f"{flag} {value}", why="is too small", hint=f"use at least {least}")
    problems.raise_if_any()
    chosen = kernel_named(kernel or DEFAULT)
    running = guests.find_guest(chosen.name)
    if running is not None and rebuild:
        hint = f"run ./inv vm down --kernel {chosen.name} first"
        raise InputError(Problem("", "--rebuild", "is not possible while the VM runs", hint))
    if rebuild:
        ensure_image(chosen, out.observer, fresh=True)
    found = guests.ensure_guest(chosen, out.observer, guests.default_hardware(memory, cpus, idle))
    said = ["it ran already, so its hardware is unchanged"] if running is not None else []
    more = f"next: ./inv up tiny --on {place_name(found.kernel)}; ./inv vm ssh; ./inv vm down"
    out.result({"guest": found.to_json()}, "\n".join([_line(found), *said, more]))


def _status(out: Console) -> None:
    from heddle_plugins.places.vm.guest import guests
    from heddle_plugins.places.vm.image import images
    from heddle_plugins.places.vm.qemu import kvm_problem
    from heddle_plugins.places.vm.recipe import KERNELS, image_name

    running, cached = guests(), images()
    needed = {image_name(kernel) for kernel in KERNELS.values()}
    lines = [_line(each) for each in running] or ["no VM runs; ./inv vm up starts one, and so does --on vm"]
    other = ("", " (of another version of Heddle)")
    lines += [_image_line(each) + other[each.name not in needed] for each in cached]
    lines += [] if cached else ["no image is cached; the first start makes one"]
    lines += [f"kernel {each.name}: {each.about} ({each.package})" for each in KERNELS.values()]
    if problem := kvm_problem():
        lines.append(f"KVM cannot be used: {problem}. The VM runs under TCG, which is slower")
    document = {"guests": [each.to_json() for each in running], "images": [each.to_json() for each in cached]}
    out.result({**document, "kernels": list(KERNELS), "kvm_problem": problem}, "\n".join(lines))


def _down(out: Console, kernel: str, *, images: bool) -> None:
    from heddle_plugins.places.vm.guest import end_guest
    from heddle_plugins.places.vm.image import remove_images, sweep
    from heddle_plugins.places.vm.recipe import KERNELS

    ended = [guest for guest in map(end_guest, [kernel] if kernel else KERNELS) if guest is not None]
    sweep()
    removed = list(remove_images()) if images else []
    lines = [f"VM {each.kernel} is down; its labs and its files are removed" for each in ended] or ["no VM ran"]
    lines += [f"image {each} is removed" for each in removed]
    out.result({"ended": [each.kernel for each in ended], "removed": removed}, "\n".join(lines))


def _build(out: Console, kernel: str, *, rebuild: bool) -> None:
    from heddle_plugins.places.vm.image import ensure_image, sweep
    from heddle_plugins.places.vm.recipe import DEFAULT, kernel_named

    sweep()
    made = ensure_image(kernel_named(kernel or DEFAULT), out.observer, fresh=rebuild)
    out.result({"image": made.to_json()}, _image_line(made))


def _ssh(out: Console, kernel: str, command: Sequence[str]) -> None:
    from heddle.base.process import find_program
    from heddle_plugins.places.vm.guest import ensure_guest, find_guest, guests
    from heddle_plugins.places.vm.qemu import HOST
    from heddle_plugins.places.vm.recipe import DEFAULT, kernel_named

    if out.json:
        raise InputError(Problem("", "--format json", "is not possible with vm ssh: its output is the command's own"))
    ssh = find_program("ssh")
    if ssh is None:
        raise MachineError(Problem("", "ssh", "is not installed", "run apt-get install openssh-client"))
    running = guests()
    only = running[0].kernel if len(running) == 1 else DEFAULT
    chosen = kernel_named(kernel or only)
    guest = find_guest(chosen.name) or ensure_guest(chosen, out.observer)
    out.close()
    keys = guest.keys
    options = ["IdentitiesOnly=yes", f'UserKnownHostsFile="{keys.known_hosts}"']
    options += ["StrictHostKeyChecking=yes", "LogLevel=ERROR"]
    words = [ssh, "-F", "none", "-p", str(guest.port), "-i", str(keys.user_key)]
    words += [word for option in options for word in ("-o", option)]
    # ssh joins the words of a command with spaces, and a shell there splits them again.
    os.execv(ssh, [*words, f"root@{HOST}", *([shlex.join(command)] if command else [])])  # noqa: S606


def _line(guest: Guest) -> str:
    processors = f"{guest.cpus} processor{'' if guest.cpus == 1 else 's'}"
    what = f"Linux {guest.release}, {processors}, {guest.memory} MiB, {guest.accelerator.upper()}"
    minutes = guest.idle_seconds // 60
    idle = f"ends after {minutes} minutes without a verb" if minutes else "runs until vm down"
    return f"VM {guest.kernel}: {what}; {idle}"


def _image_line(image: VmImage) -> str:
    return f"image {image.name}: Linux {image.release}, {image.bytes_used / 1e9:.1f} GB, {image.path}"
