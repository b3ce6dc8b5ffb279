"""The verbs about this machine: doctor, setup, image, and vm, the virtual machine in which `--place vm` runs verbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base import extras
from heddle.base.extras import SSH
from heddle.cli import helptexts
from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.helptexts import KUBERNETES, target_of
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle_plugins.places.vm.guest import Guest
    from heddle_plugins.places.vm.image import VmImage


@verb(group="Start")
def doctor(out: Console) -> None:
    """Check what this machine can run and how to fix what is missing.

    Exit code 3 when something that a fabric needs is missing. Nothing on the machine is changed.
    """
    from heddle.endpoints.rdma.verbscheck import rxe_check, verbs_check
    from heddle.host.doctor import examine
    from heddle.predict.selftest import doctor_check
    from heddle_plugins.places.vm.guest import vm_check

    found = examine({"prediction": doctor_check, "rxe": rxe_check, "verbs": verbs_check, "vm": vm_check})
    out.result(found.to_json(), found.text())
    out.exit_code = 0 if found.ok else 3


@verb(
    group="Start",
    help={
        "what": Option(
            "containerlab; fabric: FRR and the other system packages of runtime netns; kubernetes: check a cluster",
            ("containerlab", "fabric", "kubernetes"),
        ),
        "stop": "stop the container engine that Heddle started, and do nothing else",
        "yes": "install missing system packages without asking",
        **KUBERNETES,
        "out": "kubernetes: also write the manifests for an administrator into this directory",
    },
    positional=["what"],
    root=lambda typed: typed["what"] != "kubernetes",
    lasting=True,
    files_in=["pod"],
    files_out=["out_"],
    directory_out=True,
)
def setup(
    out: Console,
    what: str = "containerlab",
    stop: bool = False,
    yes: bool = False,
    context: str | None = None,
    namespace: str | None = None,
    image: str | None = None,
    pull_secret: str | None = None,
    tunnel_port: int | None = None,
    pod: str | None = None,
    out_: str | None = None,
) -> None:
    """Install the missing parts of runtime containerlab: Docker, its daemon, containerlab, images.

    ./inv setup fabric installs the system packages that `up` needs without containers. Both ask before they install.
    ./inv setup kubernetes installs nothing: it checks what a cluster allows, by two pods, which it removes.
    """
    from heddle.base.problems import InputError, Problem
    from heddle.host.engine import setup as engine
    from heddle.views import labtext as views

    engine.check_what(what)
    given = target_of({
        "context": context, "namespace": namespace, "image": image, "pull_secret": pull_secret,
        "tunnel_port": tunnel_port, "pod": pod,
    })  # fmt: skip
    if what == extras.KUBERNETES:
        if stop:
            raise InputError(Problem("", "--stop", "is only for containerlab", "run ./inv setup --stop"))
        return _setup_kubernetes(out, given, out_)
    if named := next(iter([*given, *(["out"] if out_ else [])]), None):
        flag = f"--{named.replace('_', '-')}"
        raise InputError(Problem("", flag, "is only for kubernetes", f"run ./inv setup kubernetes {flag} ..."))
    if what == engine.FABRIC:
        if stop:
            raise InputError(Problem("", "--stop", "is only for containerlab", "run ./inv setup --stop"))
        done = engine.setup_fabric(out.observer, yes=yes, ask=out.confirm)
        return out.result({"steps": [each.to_json() for each in done]}, views.steps_text(done))
    steps = [engine.stop_engine()] if stop else engine.setup_containerlab(out.observer, yes=yes, ask=out.confirm)
    return out.result({"steps": [each.to_json() for each in steps]}, views.steps_text(steps))


def _setup_kubernetes(out: Console, given: Mapping[str, str], directory: str | None) -> None:
    from heddle.base.files import real
    from heddle.base.userfiles import write_texts
    from heddle.runtimes.clusterkind import CLUSTERS

    found = CLUSTERS[extras.KUBERNETES].probe(given, out.observer)
    if directory is not None:
        write_texts(real(directory), found.files)
    out.result(found.to_json(), found.text())
    out.exit_code = 0 if found.ok else 3


@verb(
    group="Start",
    help={
        "rebuild": "build both images again, even if they exist; with --archive, the system below Heddle",
        "prune": "remove older images that nothing uses",
        "archive": Option("only write Heddle's own image to this file, for the nodes of a cluster", value="FILE"),
        "yes": "install missing system packages without asking",
    },
    files_out=["archive"],
    root=True,
    lasting=True,
)
def image(out: Console, rebuild: bool = False, prune: bool = False, archive: str = "", yes: bool = False) -> None:
    """Build the images of containerlab's nodes if they are missing, and list them.

    --archive needs no container engine: docs/install.md has the commands that load the file into a cluster.
    """
    from heddle.host.engine import images
    from heddle.views import labtext as views

    if archive:
        from heddle.base.files import real, result_name
        from heddle.host.fabricarchive import write_fabric_image

        made = write_fabric_image(real(archive), out.observer, rebuild=rebuild, yes=yes, ask=out.confirm)
        return out.result(
            {**made.to_json(), "archive": result_name(archive)},
            f"{archive}: image {made.name}, {made.bytes / 1e6:.0f} MB",
        )
    found = images.ensure_images(out.observer, rebuild=rebuild, yes=yes, ask=out.confirm)
    removed = images.prune() if prune else []
    return out.result(
        {"images": [each.to_json() for each in found], "removed": removed}, views.images_text(found, removed)
    )


ACTIONS: Final = ("up", "status", "ssh", "down", "build")
_BOOTS: Final = ("up", "ssh")


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
    help=helptexts.VM,
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
    """Start, show, enter or end the VM: Debian's full kernel in QEMU, for verbs with --place vm.

    The first start makes an image; this takes a few minutes, and the image is kept. Starting the VM needs no root.
    """
    from heddle.base.problems import InputError, Problem, did_you_mean
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
    from heddle.base.problems import InputError, Problem, Problems
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
    more = f"next: ./inv up tiny --place {place_name(found.kernel)}; ./inv vm ssh; ./inv vm down"
    out.result({"guest": found.to_json()}, "\n".join([_line(found), *said, more]))


def _status(out: Console) -> None:
    from heddle_plugins.places.vm.guest import guests
    from heddle_plugins.places.vm.image import images
    from heddle_plugins.places.vm.qemu import kvm_problem
    from heddle_plugins.places.vm.recipe import KERNELS, image_name

    running, cached = guests(), images()
    needed = {image_name(kernel) for kernel in KERNELS.values()}
    lines = [_line(each) for each in running] or ["no VM runs; ./inv vm up starts one, and so does --place vm"]
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
    import os
    import shlex

    from heddle.base.problems import InputError, MachineError, Problem
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
