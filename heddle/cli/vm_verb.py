"""The verb `vm`: the virtual machine that `--place vm` runs verbs in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.places.vm.guest import Guest
    from heddle.places.vm.image import VmImage

_ACTIONS: Final = ("up", "status", "ssh", "down", "build")


@verb(
    help={
        "action": "up, status, ssh, down or build",
        "command": "of ssh: what to run in the guest; without it, a shell",
        "kernel": "backports (the default) or stable: Debian's newest kernel, or that of its stable release",
        "memory": "MiB of the guest",
        "cpus": "processors of the guest; by default those of this machine, four at most",
        "idle": "minutes without a verb after which the guest ends; 0: never",
        "all": "with down: the guests of all kernels",
        "images": "with down: remove the cached images, too",
        "rebuild": "with build or up: make the image again, with Debian's packages of today",
    },
    positional=["action"],
    rest="command",
    lasting=True,
)
def vm(
    out: Console,
    action: str = "status",
    command: tuple[str, ...] = (),
    kernel: str = "",
    memory: int = 2048,
    cpus: int = 0,
    idle: int = 60,
    all_: bool = False,
    images: bool = False,
    rebuild: bool = False,
) -> None:
    """Start, show, enter or end the VM: Debian's full kernel in QEMU, for verbs with --place vm.

    The first start makes an image, which takes a few minutes and is kept. No root is needed to start the VM.
    """
    from heddle.base.problems import InputError, Problem, nearest

    if action not in _ACTIONS:
        near = nearest(action, _ACTIONS)
        hint = f"did you mean {near}?" if near else f"write one of {', '.join(_ACTIONS)}"
        raise InputError(Problem("", f"vm {action[:60]}", "is not something that vm can do", hint))
    if command and action != "ssh":
        raise InputError(Problem("", " ".join(command)[:60], f"is not for vm {action}", "a command is for vm ssh"))
    match action:
        case "status":
            _status(out)
        case "down":
            _down(out, kernel, everything=all_, images=images)
        case "build":
            _build(out, kernel, rebuild=rebuild)
        case "up":
            _up(out, kernel, memory, cpus, idle, rebuild=rebuild)
        case _:
            _ssh(out, kernel, command)


def _up(out: Console, kernel: str, memory: int, cpus: int, idle: int, *, rebuild: bool) -> None:
    from heddle.base.problems import InputError, Problem
    from heddle.places.vm import guest as guests
    from heddle.places.vm.image import ensure_image
    from heddle.places.vm.kernels import DEFAULT, kernel_named

    for flag, value, least in (("--memory", memory, 1024), ("--cpus", cpus, 0), ("--idle", idle, 0)):
        if value < least:
            raise InputError(Problem("", f"{flag} {value}", "is too small", f"at least {least}"))
    chosen = kernel_named(kernel or DEFAULT)
    running = guests.find_guest(chosen.name)
    if running is not None and rebuild:
        hint = f"./inv vm down --kernel {chosen.name}, then again"
        raise InputError(Problem("", "--rebuild", "is not possible while the VM runs", hint))
    if rebuild:
        ensure_image(chosen, out.observer, fresh=True)
    hardware = guests.default_hardware(memory, cpus, idle)
    found = guests.ensure_guest(chosen, out.observer, hardware)
    said = ["it ran already; its hardware is unchanged"] if running is not None else []
    out.result({"guest": found.to_json()}, "\n".join([_line(found), *said, _next(found)]))


def _status(out: Console) -> None:
    from heddle.places.vm import qemu
    from heddle.places.vm.guest import guests
    from heddle.places.vm.image import images

    running, cached = guests(), images()
    lines = [_line(each) for each in running] or ["no VM runs; ./inv vm up starts one, and so does --place vm"]
    lines += [_image_line(each) for each in cached] or ["no image is cached; the first start makes one"]
    if problem := qemu.kvm_problem():
        lines.append(f"KVM cannot be used: {problem}. The VM runs under TCG, which is slower")
    document = {"guests": [each.to_json() for each in running], "images": [each.to_json() for each in cached]}
    out.result({**document, "kvm_problem": problem}, "\n".join(lines))


def _down(out: Console, kernel: str, *, everything: bool, images: bool) -> None:
    from heddle.places.vm.guest import end_guest
    from heddle.places.vm.image import remove_images
    from heddle.places.vm.kernels import DEFAULT, KERNELS, kernel_named

    chosen = list(KERNELS) if everything or images else [kernel_named(kernel or DEFAULT).name]
    ended = [guest for guest in map(end_guest, chosen) if guest is not None]
    removed = list(remove_images()) if images else []
    lines = [f"the VM with kernel {each.kernel} is down; nothing of it is left" for each in ended] or ["no VM ran"]
    lines += [f"image {each.name} is removed" for each in removed]
    out.result({"ended": [e.kernel for e in ended], "removed": [i.name for i in removed]}, "\n".join(lines))


def _build(out: Console, kernel: str, *, rebuild: bool) -> None:
    from heddle.places.vm.image import ensure_image
    from heddle.places.vm.kernels import DEFAULT, kernel_named

    made = ensure_image(kernel_named(kernel or DEFAULT), out.observer, fresh=rebuild)
    out.result({"image": made.to_json()}, _image_line(made))


def _ssh(out: Console, kernel: str, command: tuple[str, ...]) -> None:
    import os
    import shlex

    from heddle.base.problems import InputError, MachineError, Problem
    from heddle.base.process import find_program
    from heddle.places.vm.guest import ensure_guest
    from heddle.places.vm.kernels import DEFAULT, kernel_named
    from heddle.places.vm.keys import HOST

    if out.json:
        raise InputError(Problem("", "--format json", "is not for vm ssh, whose output is the command's own"))
    ssh = find_program("ssh")
    if ssh is None:
        raise MachineError(Problem("", "ssh", "is not installed", "apt-get install openssh-client"))
    guest = ensure_guest(kernel_named(kernel or DEFAULT), out.observer)
    out.close()
    keys = guest.keys
    options = ["IdentitiesOnly=yes", f'UserKnownHostsFile="{keys.known_hosts}"']
    options += ["StrictHostKeyChecking=yes", "LogLevel=ERROR"]
    words = [ssh, "-F", "none", "-p", str(guest.port), "-i", str(keys.user_key)]
    words += [word for option in options for word in ("-o", option)]
    # ssh joins the words of a command with spaces, and a shell reads them there.
    os.execv(ssh, [*words, f"root@{HOST}", *([shlex.join(command)] if command else [])])  # noqa: S606


def _line(guest: Guest) -> str:
    what = f"Linux {guest.release}, {guest.cpus} processors, {guest.memory} MiB, {guest.accelerator.upper()}"
    idle = f"ends after {guest.idle_minutes} minutes without a verb" if guest.idle_minutes else "stays until vm down"
    return f"VM {guest.kernel}: {what}; {idle}"


def _image_line(image: VmImage) -> str:
    return f"image {image.name}: Linux {image.release}, {image.bytes_used / 1e9:.1f} GB, {image.path}"


def _next(guest: Guest) -> str:
    from heddle.places.vm.kernels import DEFAULT

    place = "vm" if guest.kernel == DEFAULT else f"vm:{guest.kernel}"
    return f"next: ./inv up tiny --place {place}; ./inv vm ssh; ./inv vm down"
