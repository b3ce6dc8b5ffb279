# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH115, PTH120, PTH208, S606, SIM105
# os calls, since importing pathlib would double the start-up time; and becoming a command is the purpose here.
"""Run commands inside nodes: a helper process of Heddle, standard library only so that it starts quickly.

A node is a network namespace and a *path space*: its own directories, bound over /etc/frr, /run/frr and /var/log/frr,
so that FRR and vtysh run unmodified, many times on one machine. Each process that enters gets its own path space, in a
mount namespace that ends with the process: nothing must be kept alive, and nothing is left to clean up.

    python -I -S enter.py one JOB          enter one node and become its command
    python -I -S enter.py many PID < jobs  run the commands of many nodes, each node's in order, nodes in parallel,
                                           while process PID, the caller, is running
    python -I -S enter.py ranks JOB        run the ranks of a program in one host, see `ranks`

A job is JSON: {"node", "netns", "mounts": [[source, target, read_only], ...], "env": {name: value}, "commands":
[[argv...], ...]}. With "root" the node has its own view of all files: {"view": its root, "places": [[source, place],
...], "devices": [name below /dev, ...]}, see netns_space.py.
With "goes_on" commands after one that failed are run too, unless it is one of "needed", as [argv...].
`many` prints one JSON object: node -> [{"command", "code", "output"}, ...] of the commands that failed.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys

CLONE_NEWNET = 0x40000000
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWPID = 0x20000000
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
    """Enter the node: its network first, then its path space."""
    netns = os.open(job["netns"], os.O_RDONLY | os.O_CLOEXEC)
    check(libc.setns(netns, CLONE_NEWNET), f"setns {job['netns']}")
    os.close(netns)
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS), "unshare")
    name = job["node"].encode()[:64]
    check(libc.sethostname(name, len(name)), "sethostname")  # as in a container; bgpd sends it to its peers
    # Slave, as in `ip netns exec`: mounts made here are not visible outside, but an unmount outside also happens here,
    # so that a daemon of this lab does not keep a namespace of another lab alive.
    mount("none", "/", flags=MS_REC | MS_SLAVE)
    sources = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source, _, _ in job["mounts"]]
    targets = [target for _, target, _ in job["mounts"]]
    outer = [t for t in targets if not any(t.startswith(f"{other}/") for other in targets)]
    own = "root" in job
    if own:
        enter_root(**job["root"])
    elif any(target.startswith("/run/") and not os.path.exists(target) for target in outer):
        replace_run()
    for fd, (source, target, read_only) in zip(sources, job["mounts"], strict=True):
        if own:
            make_point(target, os.path.isdir(f"/proc/self/fd/{fd}"))
        elif target in outer and target.startswith("/run/"):
            os.makedirs(target, exist_ok=True)  # on the tmpfs of replace_run, if it was missing
        # The node's own view of the source: what it writes there stays in its layer.
        seen = own and os.path.exists(source)
        mount(source if seen else f"/proc/self/fd/{fd}", target, flags=MS_BIND | MS_REC)
        if read_only:
            mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)
        os.close(fd)
    show_own_interfaces()
    os.environ.update(job.get("env", {}))


def enter_root(view: str, places: list, devices: list) -> None:  # type: ignore[type-arg]
    """Take the node's view as the root, with its other places, and with /proc, /sys and devices of this machine."""
    mount("/proc", f"{view}/proc", flags=MS_BIND | MS_REC)
    found = [(os.open(source, os.O_PATH | os.O_CLOEXEC), place) for source, place in places]
    kept = ["/sys", *(each for name in devices if os.path.exists(each := f"/dev/{name}"))]
    found += [(os.open(place, os.O_PATH | os.O_CLOEXEC), place) for place in kept]
    os.chroot(view)
    os.chdir("/")
    for fd, place in found:
        mount(f"/proc/self/fd/{fd}", place, flags=MS_BIND | MS_REC)
        os.close(fd)
    if not os.path.isdir(os.environ.get("TMPDIR", "/")):  # the caller's, which this node does not have
        del os.environ["TMPDIR"]


def make_point(target: str, directory: bool) -> None:
    """Make a mount point in the node's view; nothing when it exists."""
    if not os.path.exists(target):
        os.makedirs(target if directory else os.path.dirname(target), exist_ok=True)
        if not directory:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def replace_run() -> None:
    """Mount a tmpfs on /run and bind its old entries into it, so that a directory can be added for this process only.

    /run/frr may be missing (the FRR package makes it with tmpfiles.d, which needs systemd). Heddle must not change the
    machine to make it.
    """
    here = os.open("/run", os.O_PATH | os.O_CLOEXEC)
    names = os.listdir("/run")
    mount("tmpfs", "/run", "tmpfs")
    for name in names:
        target = f"/run/{name}"
        try:
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        except FileNotFoundError:  # another process has removed it meanwhile
            continue
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
    """Mount /sys again, as `ip netns exec` does: /sys/class/net shows the namespace of the process that mounted it.

    Its BPF and cgroup file systems are kept. If the machine refuses, the old /sys stays: only views differ.
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
    """Become the command; exit code 127 if it does not exist, as in a shell."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the command would inherit that
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
        name = os.environ.get("HEDDLE_PROGRAM", "./inv")  # as in heddle/base/progname.py
        hint = f"  hint: run {name} down, then {name} up, to recreate the lab"
        os.write(2, f"cannot enter {job['node']}: {error}\n{hint}\n".encode())
        os._exit(125)
    become(job["commands"][0])


def run(argv: list[str], out: int) -> int:
    """Run one command of a node until it exits, with `out` as its output."""
    pid = os.fork()
    if pid == 0:
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        become(argv)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def all_of(job: dict, out: int, parent: int) -> int:  # type: ignore[type-arg]
    """Enter, then run the node's commands until one fails that is needed; writes those that failed and returns 1."""
    die_with(parent)
    failed = []
    try:
        enter(job)
        for command in job["commands"]:
            os.ftruncate(out, 0)
            os.lseek(out, 0, 0)
            code = run(command, out)
            if code != 0:
                said = os.pread(out, 1 << 16, 0).decode(errors="replace")
                failed.append({"command": command, "code": code, "output": said})
                if not job.get("goes_on") or command in job["needed"]:
                    break
    except OSError as error:
        failed.append({"command": [], "code": 125, "output": f"cannot enter {job['node']}: {error}"})
    os.ftruncate(out, 0)
    os.pwrite(out, json.dumps(failed).encode(), 0)
    return 1 if failed else 0


def many(jobs: list) -> dict:  # type: ignore[type-arg]
    """Fork for every job, a few at a time; returns the failures."""
    failed = {}
    running: dict[int, tuple[str, int]] = {}
    parent = os.getpid()
    width = 4 * (os.cpu_count() or 1)  # more than processors, since daemons wait for their own children

    def reap() -> None:
        pid, status = os.wait()
        node, out = running.pop(pid)
        if status != 0:
            said = os.pread(out, os.fstat(out).st_size, 0).decode(errors="replace")
            killed = [{"command": [], "code": status, "output": said}]
            failed[node] = json.loads(said) if os.WIFEXITED(status) else killed
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


def ranks(job: dict) -> int:  # type: ignore[type-arg]
    """Run a program's ranks in one host. Its processes have a namespace of their own, which ends with its first one.

    So no process can stay behind, not even one that has left its parent. More keys of the job: "ranks": [{"env", "out",
    "err"}, ...] with descriptors; "argv"; "user": {"uid", "gid", "groups"} or null; "control", a descriptor: each byte
    is a signal for all processes, and its end is the end of all; "status": gets a line for each rank, `NUMBER STATUS`
    as of waitpid(2), and `left COUNT` in the end: the processes that the ranks left behind.
    """
    try:
        enter(job)
        check(libc.unshare(CLONE_NEWPID), "unshare")
    except OSError as error:
        os.write(job["status"], f"cannot enter {job['node']}: {error}\n".encode())
        return 125
    pid = os.fork()
    if pid == 0:
        os._exit(first_process(job))
    os.closerange(3, 1 << 16)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def first_process(job: dict) -> int:  # type: ignore[type-arg]
    """Start the ranks and wait for them. When this process ends, the kernel ends all others of its namespace."""
    try:
        mount("proc", "/proc", "proc")  # of this namespace: /proc/self is right for programs
    except OSError:
        pass  # a container may forbid it; then /proc has the numbers of outside
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running = {start_rank(job, each): number for number, each in enumerate(job["ranks"])}
    for each in job["ranks"]:
        os.close(each["out"])
        os.close(each["err"])
    poll = select.poll()
    poll.register(job["control"], select.POLLIN)
    poll.register(woken, select.POLLIN)
    while running:
        ready = {fd for fd, _ in poll.poll()}
        if woken in ready:
            os.read(woken, 1024)
        if job["control"] in ready:
            numbers = os.read(job["control"], 64)
            if not numbers:
                return 0
            for number in numbers:
                signal_all(number)
        while (ended := reaped()) is not None:
            if (at := running.pop(ended[0], None)) is not None:
                os.write(job["status"], f"{at} {ended[1]}\n".encode())
    os.write(job["status"], f"left {others()}\n".encode())
    return 0


def start_rank(job: dict, rank: dict) -> int:  # type: ignore[type-arg]
    """Fork one rank; its process ID."""
    pid = os.fork()
    if pid:
        return pid
    try:
        become_rank(job, rank)
    except OSError as error:
        os.write(2, f"cannot start a rank on {job['node']}: {error}\n".encode())
    os._exit(126)


def become_rank(job: dict, rank: dict) -> None:  # type: ignore[type-arg]
    """Become the program, with the rank's streams and environment and the user's rights."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    nothing = os.open("/dev/null", os.O_RDONLY)
    for target, fd in enumerate((nothing, rank["out"], rank["err"])):
        os.dup2(fd, target)
    os.closerange(3, 1 << 16)
    os.environ.update(rank["env"])
    os.get_exec_path()  # execvp imports a module, and the user may not read the files of root's Python
    if user := job["user"]:
        os.setgroups(user["groups"])
        os.setgid(user["gid"])
        os.setuid(user["uid"])
    become(job["argv"])


def reaped() -> tuple[int, int] | None:
    """A process that has ended, and its status; None if there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def signal_all(number: int) -> None:
    """Send a signal to all processes of this namespace but this one; a stopped one handles it when it goes on."""
    for each in (number, signal.SIGCONT):
        try:
            os.kill(-1, each)
        except ProcessLookupError:
            return


def others() -> int:
    """The number of other processes in this namespace."""
    return sum(name.isdigit() for name in os.listdir("/proc")) - 1 if os.readlink("/proc/self") == "1" else 0


def die_with(parent: int) -> None:
    """End this process when its parent ends: a killed `up` must not leave helpers that create more objects."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def main() -> None:
    """Run the command for one node or for many."""
    if sys.argv[1] == "one":
        one(json.loads(sys.argv[2]))
    if sys.argv[1] == "ranks":
        sys.exit(ranks(json.loads(sys.argv[2])))
    die_with(int(sys.argv[2]))
    print(json.dumps(many(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
