# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH208, S606
# os calls, since importing pathlib would double the start-up time; and becoming a command is the purpose here.
"""Run commands inside nodes: a helper process of the netns runtime, standard library only so that it starts quickly.

A node is a network namespace and a *path space*: directories of its own bound over /etc/frr, /run/frr and /var/log/frr,
so that FRR and vtysh run unmodified, many times on one machine. The path space is made anew for whoever enters, in a
mount namespace that ends with the process: nothing has to be kept alive, and nothing is left to clean up.

    python -I -S enter.py one JOB          enter one node and become its command
    python -I -S enter.py many PID < jobs  run the commands of many nodes, each node's in order, nodes beside each
                                           other, for as long as process PID, the caller, lives

A job is JSON: {"node", "netns", "mounts": [[source, target, read_only], ...], "env": {name: value}, "commands":
[[argv...], ...]}.
`many` prints one JSON object: node -> {"command", "code", "output"} of the first command that failed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

CLONE_NEWNET = 0x40000000
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 32, 4096, 16384, 1 << 19
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None, use_errno=True)
libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def check(result: int, what: str) -> None:
    """OSError with the kernel's reason when a libc call failed."""
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str = "none", flags: int = 0) -> None:
    """mount(2); OSError names the target."""
    check(libc.mount(source.encode(), target.encode(), kind.encode(), flags, None), f"mount {target}")


def enter(job: dict) -> None:  # type: ignore[type-arg]
    """Stand in the node: its network first, then its path space."""
    netns = os.open(job["netns"], os.O_RDONLY | os.O_CLOEXEC)
    check(libc.setns(netns, CLONE_NEWNET), f"setns {job['netns']}")
    os.close(netns)
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS), "unshare")
    name = job["node"].encode()[:64]
    check(libc.sethostname(name, len(name)), "sethostname")  # as in a container; bgpd tells it to its peers
    # Slave, as `ip netns exec` has it: nothing mounted here shows outside, but what is unmounted outside goes here
    # too, so that a daemon of this lab holds on to no namespace of another.
    mount("none", "/", flags=MS_REC | MS_SLAVE)
    sources = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source, _, _ in job["mounts"]]
    targets = [target for _, target, _ in job["mounts"]]
    outer = [t for t in targets if not any(t.startswith(f"{other}/") for other in targets)]
    if any(target.startswith("/run/") and not os.path.exists(target) for target in outer):
        replace_run()
    for fd, (_, target, read_only) in zip(sources, job["mounts"], strict=True):
        if target in outer and target.startswith("/run/"):
            os.makedirs(target, exist_ok=True)  # on the tmpfs of replace_run, when it was not there
        mount(f"/proc/self/fd/{fd}", target, flags=MS_BIND | MS_REC)
        if read_only:
            mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)
        os.close(fd)
    show_own_interfaces()
    os.environ.update(job.get("env", {}))


def replace_run() -> None:
    """Give /run a tmpfs with all that was there bound into it, so that a directory can be added for this process only.

    Where the FRR package has not made /run/frr (it is a tmpfiles.d entry, lost without systemd), nothing on the machine
    may be changed to have it.
    """
    here = os.open("/run", os.O_PATH | os.O_CLOEXEC)
    names = os.listdir("/run")
    mount("tmpfs", "/run", "tmpfs")
    for name in names:
        target = f"/run/{name}"
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        try:
            if os.path.isdir(f"/proc/self/fd/{fd}"):
                os.mkdir(target)
                mount(f"/proc/self/fd/{fd}", target, flags=MS_BIND | MS_REC)
        except OSError:
            continue
        finally:
            os.close(fd)
    os.close(here)


def show_own_interfaces() -> None:
    """Mount /sys again, as `ip netns exec` does: /sys/class/net shows the namespace of whoever mounted it.

    Its BPF and cgroup file systems are carried over. A machine that refuses keeps the old /sys: only views differ.
    """
    kept = [(p, os.open(p, os.O_PATH | os.O_CLOEXEC)) for p in ("/sys/fs/bpf", "/sys/fs/cgroup") if os.path.ismount(p)]
    try:
        mount("sysfs", "/sys", "sysfs")
        for path, fd in kept:
            mount(f"/proc/self/fd/{fd}", path, flags=MS_BIND | MS_REC)
    except OSError:
        pass
    for _, fd in kept:
        os.close(fd)


def become(argv: list[str]) -> None:
    """Turn into the command; 127 when there is no such command, as a shell has it."""
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def one(job: dict) -> None:  # type: ignore[type-arg]
    """Enter and become the job's only command; exit code 125 when the node cannot be entered."""
    try:
        enter(job)
    except OSError as error:
        name = os.environ.get("HEDDLE_PROGRAM", "./inv")  # as heddle/base/progname.py has it
        hint = f"  hint: {name} down removes the lab, {name} up brings it up again"
        os.write(2, f"cannot enter {job['node']}: {error}\n{hint}\n".encode())
        os._exit(125)
    become(job["commands"][0])


def run(argv: list[str], out: int) -> int:
    """Run one command of a node to its end, with `out` as its output."""
    pid = os.fork()
    if pid == 0:
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        become(argv)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def all_of(job: dict, out: int, parent: int) -> int:  # type: ignore[type-arg]
    """Enter, then run the node's commands until one fails; writes which one and returns its code."""
    die_with(parent)
    command: list[str] = []
    try:
        enter(job)
        for command in job["commands"]:
            code = run(command, out)
            if code != 0:
                break
        else:
            return 0
    except OSError as error:
        os.write(out, f"cannot enter {job['node']}: {error}\n".encode())
        code = 125
    os.write(out, ("\n" + json.dumps({"command": command, "code": code})).encode())
    return 1


def many(jobs: list) -> dict:  # type: ignore[type-arg]
    """Fork for every job, a few at a time; returns what failed."""
    failed = {}
    running: dict[int, tuple[str, int]] = {}
    parent = os.getpid()
    width = 4 * (os.cpu_count() or 1)  # daemons wait for their own children: a few more than processors

    def reap() -> None:
        pid, status = os.wait()
        node, out = running.pop(pid)
        if status != 0:
            os.lseek(out, 0, 0)
            said, _, last = os.read(out, 1 << 16).decode(errors="replace").rpartition("\n")
            failed[node] = (
                {**json.loads(last), "output": said}
                if last.startswith("{")
                else {"command": [], "code": status, "output": said + last}
            )
        os.close(out)

    for job in jobs:
        while len(running) >= width:
            reap()
        out = os.memfd_create(job["node"], os.MFD_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            os._exit(all_of(job, out, parent))
        running[pid] = (job["node"], out)
    while running:
        reap()
    return failed


def die_with(parent: int) -> None:
    """An `up` that is killed must not leave helpers behind that go on making things."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def main() -> None:
    """Choose between one node and many."""
    if sys.argv[1] == "one":
        one(json.loads(sys.argv[2]))
    die_with(int(sys.argv[2]))
    print(json.dumps(many(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
