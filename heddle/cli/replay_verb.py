"""The verb `replay`: lines of verbs in a VM whose clock counts instructions, so that their results are equal bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base.tables import table
from heddle.cli import helptexts
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from pathlib import Path

    from heddle.places.vm.image import VmImage
    from heddle.places.vm.replay import Replayed
    from heddle.places.vm.replayscript import Script

_MOST_TIMES: Final = 100
# They start VMs, or wait for a user at a terminal or for a program.
_ELSEWHERE: Final = ("vm", "replay", "setup", "mcp", "dashboard")


def needed_packages(typed: Mapping[str, Any]) -> Sequence[str]:
    """QEMU, and the tools that make an image, if the cache does not have it."""
    from heddle.cli.vm_verb import image_packages
    from heddle.host import packages

    return (*packages.VM, *image_packages(typed["kernel"]))


def _files_in(typed: Mapping[str, Any]) -> Sequence[str]:
    from heddle.places.vm.replayscript import scripts

    return [*([] if typed["script"] in scripts() else [typed["script"]]), *typed["input"]]


@verb(help=helptexts.REPLAY, packages=needed_packages, files_in=_files_in, files_out=["out_"], directory_out=True)
def replay(
    out: Console,
    script: str,
    out_: str | None = None,
    times: int = 1,
    input: Sequence[str] = (),
    kernel: str = "",
    memory: int = 2048,
    instruction_ns: int = 1,
    seed: int = 1,
    minutes: int = 30,
) -> None:
    """Run a script of verbs in a VM whose clock counts instructions: the same script gives the same bytes.

    A line is ./inv VERB ..., with > FILE or & at its end if needed, or sleep SECONDS, or wait. Files that the lines
    write come back, with their output. With --times, several VMs run the script, and every file is compared; the exit
    code is 1 when they differ. docs/kernels.md says what makes runs equal.
    """
    from pathlib import Path

    from heddle.base.files import real, result_name
    from heddle.base.problems import Problems, machine_errors
    from heddle.base.state import give_to_caller
    from heddle.places.vm import guest as guests
    from heddle.places.vm import leftovers
    from heddle.places.vm.hardware import Hardware, check_instruction, check_seed
    from heddle.places.vm.imagecache import ensure_image
    from heddle.places.vm.kernels import DEFAULT, kernel_named
    from heddle.places.vm.replay import check_target, read_inputs
    from heddle.places.vm.replay import replay as replay_lines
    from heddle.places.vm.replayscript import load_script

    chosen = kernel_named(kernel or DEFAULT)
    problems = Problems()
    limits = (("--times", times, 1, _MOST_TIMES), ("--minutes", minutes, 1, 24 * 60))
    for flag, value, least, most in (*limits, ("--memory", memory, guests.LEAST_MEMORY, 1 << 20)):
        if not least <= value <= most:
            problems.add(where="", what=f"{flag} {value}", why=f"is not between {least} and {most}")
    check_instruction(instruction_ns, problems)
    check_seed(seed, problems)
    if out_ is None:
        problems.add(where="", what="--out", why="is missing", hint=f"write ./inv replay {script} --out DIRECTORY")
    problems.raise_if_any()
    typed = str(out_)
    target = real(typed)
    check_target(target, typed)
    lines = load_script(script, _check)
    inputs = read_inputs({name: real(name) for name in input}, lines)
    leftovers.sweep()
    image = ensure_image(chosen, out.observer)
    with machine_errors(typed):
        made = not target.exists()
        target.mkdir(parents=True, exist_ok=True)
    try:
        hardware = Hardware(1, memory, 0, instruction_ns, seed)
        found = replay_lines(image, lines, inputs, hardware, times, target, minutes, out.observer)
    except BaseException:
        if made and not any(target.iterdir()):
            target.rmdir()
        raise
    give_to_caller(target, deep=True)
    out.exit_code = _shown(out, image, seed, lines, found, Path(result_name(typed)))


def _check(words: Sequence[str]) -> None:
    """A line's verb and words, as this program's own parser reads them; InputError when they are wrong."""
    from invoke import Task

    from heddle.base.problems import InputError, Problem, did_you_mean
    from heddle.cli.argv import parse
    from heddle.cli.front import tasks
    from heddle.places import kinds

    verbs = {task.verb.name: task.verb for task in vars(tasks()).values() if isinstance(task, Task)}
    name = words[0]
    possible = [each for each, spec in verbs.items() if each not in _ELSEWHERE and not spec.checkout]
    if name not in possible:
        why = "is not possible in a replay" if name in verbs else "is not a verb of Heddle"
        raise InputError(Problem("", name[:60], why, did_you_mean(name, possible)))
    typed = parse(verbs[name], list(words[1:]))
    if typed.get("place") not in (None, kinds.HERE):
        raise InputError(Problem("", f"--place {typed['place']}", "is not possible in a replay", "remove --place"))


def _shown(out: Console, image: VmImage, seed: int, lines: Script, found: Sequence[Replayed], target: Path) -> int:
    """Print what the VMs did; the exit code."""
    from heddle.places.vm.replay import differing
    from heddle.places.vm.replayscript import OUTPUT

    first, differ = found[0], differing(found)
    sizes = {name: (first.directory / name).stat().st_size for name in first.files}
    failed = next((entry for entry in first.report["lines"] if entry["line"] == first.report["failed"]), None)
    document = {
        "script": lines.name,
        "kernel": image.kernel,
        "release": first.report["release"],
        "image": image.name,
        "seed": seed,
        "directory": str(target),
        "seconds": [each.seconds for each in found],
        "report": first.report,
        "files": [{"name": name, "bytes": sizes[name], "sha256": digest} for name, digest in first.files.items()],
        "equal": None if len(found) == 1 else not differ,
        "differing": differ,
    }
    rows = [(name, f"{sizes[name]:,}", digest) for name, digest in first.files.items()]
    text = [table(("file", "bytes", "SHA-256"), rows), ""]
    text.append(_compared(found, differ, target))
    if failed is not None:
        what = f"{lines.shown}:{failed['line']}  {failed['text']}"
        text.append(f"{what} ended with exit code {failed['code']}; the cause is in {OUTPUT}")
    out.result(document, "\n".join(text))
    return int(failed["code"]) if failed is not None else int(bool(differ))


def _compared(found: Sequence[Replayed], differ: Sequence[str], target: Path) -> str:
    guest_s = f"{found[0].report['seconds']:.1f} s of the VM's clock"
    if len(found) == 1:
        return f"{guest_s}; files: {target}; --times 2 runs it in two VMs and compares the files"
    if not differ:
        return f"{len(found)} VMs wrote the same bytes; {guest_s}; files: {target}"
    others = ", ".join(f"boot-{each.number}" for each in found if each.files != found[0].files)
    return f"{len(found)} VMs did not write the same bytes: {', '.join(differ)}; files: {target}, and {others} in it"
