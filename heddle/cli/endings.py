"""The end of the process: exit codes, the text of errors, and with `--format json` the document of an error.

EXIT_CODES has the exit codes and their meanings.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from heddle.base.extras import missing_module
from heddle.base.plugins import plugin_of
from heddle.base.problems import CheckError, HeddleError, InputError, MachineError, Problem, exhausted
from heddle.base.tables import written
from heddle.base.version import VERSION
from heddle.cli.console import colour_wanted, problems_json

DEFECT: Final = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED: Final = 130  # as a shell reports SIGINT
PIPE: Final = 141  # as a shell reports SIGPIPE
# What docs/exit-codes-and-variables.md lists.
EXIT_CODES: Final[Mapping[int, str]] = {
    0: "success",
    CheckError.exit_code: "a check failed, or a result is wrong",
    InputError.exit_code: "wrong input: a word, a file, or a request that does not fit the running lab",
    MachineError.exit_code: "something is missing on this machine, or the machine failed; the hint has the command",
    DEFECT: "a defect of Heddle; the message names a file with the details",
    128 + signal.SIGHUP: "the terminal was closed (SIGHUP)",
    INTERRUPTED: "Ctrl-C (SIGINT)",
    PIPE: "the reader of stdout has closed it (SIGPIPE)",
    128 + signal.SIGTERM: "stopped by SIGTERM",
}
_MOMENT_S: Final = 0.01
_ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)
_NO_DIRECTORY: Final = Problem("", "the working directory", "no longer exists", "cd to an existing directory")


def ended(work: Callable[[], None], words: Sequence[str], *, as_json: bool) -> int:
    """Do the work and return the exit code. Errors are printed, without a traceback for a user's mistake.

    words: the command line, for the report of a defect.
    """
    _open_streams()
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _come_again
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # tasks.py has set it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for ending in _ENDINGS:  # a closed terminal must not leave an incomplete lab
        if signal.getsignal(ending) is not signal.SIG_IGN:  # nohup
            signal.signal(ending, _terminated)
    try:
        work()
        written()
    except BrokenPipeError:
        return _stdout_closed()
    except SystemExit as end:
        return _flushed(end.code if isinstance(end.code, int) else 0)
    except (HeddleError, KeyboardInterrupt) as error:
        return _ended(error, as_json)
    except Exception as error:
        if isinstance(error, FileNotFoundError) and not _has_directory():
            return _report("InputError", 2, [_NO_DIRECTORY], as_json)
        return _defect(error, words, as_json)
    return 0


def _open_streams() -> None:
    """Open /dev/null for streams that the caller closed (`>&-`): else the next opened file would take their number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR)
            if fd != number:
                os.dup2(fd, number)
                os.close(fd)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _has_directory() -> bool:
    try:
        return Path.cwd().is_dir()
    except FileNotFoundError:
        return False


def _terminated(number: int, frame: object) -> None:
    # Often two come: `timeout` signals the process and then its group, a terminal the group and then its leader. The
    # second one must not break off what the first one undoes. A handler, not SIG_IGN, which children would inherit.
    for ending in _ENDINGS:
        signal.signal(ending, _ends_already)
    if number == signal.SIGHUP:
        _leave_terminal()
    # As an exception, so that every `finally` block runs.
    raise SystemExit(128 + number)


def _come_again(lost: sys.UnraisableHookArgs) -> None:
    """Python prints an exception of a destructor, of a weak reference's callback or of a callback from C, and goes on.

    Ctrl-C and SIGTERM raise theirs wherever the main thread is, so also there (each import has such a callback). The
    signal is sent again, a moment later: it would be lost in this function, too.
    """
    if issubclass(lost.exc_type, KeyboardInterrupt):
        number = int(signal.SIGINT)
    elif isinstance(lost.exc_value, SystemExit) and signal.getsignal(signal.SIGTERM) is _ends_already:
        number = int(lost.exc_value.code or 0) - 128
        signal.signal(number, _terminated)
    else:
        sys.__unraisablehook__(lost)
        return
    again = threading.Timer(_MOMENT_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _ends_already(number: int, frame: object) -> None:
    """Only SIGKILL is faster."""


def _leave_terminal() -> None:
    """Open /dev/null in place of a terminal that is gone: what is said while work is undone would fail with EIO."""
    for fd in (0, 1, 2):
        terminal = select.poll()
        terminal.register(fd, 0)
        if any(event & select.POLLHUP for _, event in terminal.poll(0)):
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, fd)
            os.close(null)


def _flushed(code: int) -> int:
    try:
        written()
    except BrokenPipeError:
        return _stdout_closed()
    except MachineError as error:
        return _ended(error, as_json=False)
    return code


def _stdout_closed() -> int:
    # Python flushes stdout once more at exit, and would complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return PIPE


def _ended(error: HeddleError | KeyboardInterrupt, as_json: bool) -> int:
    if isinstance(error, HeddleError):
        return _report(type(error).__name__, error.exit_code, error.problems, as_json)
    problem = Problem("", "./inv", "was interrupted", "./inv status shows running labs, ./inv down removes one")
    return _report("Interrupted", INTERRUPTED, [problem], as_json)


def _report(kind: str, code: int, problems: Sequence[Problem], as_json: bool) -> int:
    try:
        if as_json:
            try:
                written(json.dumps(problems_json(kind, code, problems), indent=2) + "\n")
            except MachineError as error:  # stderr still has the error
                print(error, file=sys.stderr)
        red, plain = ("\033[31m", "\033[0m") if colour_wanted(sys.stderr) else ("", "")
        for problem in problems:
            head, newline, hint = str(problem).partition("\n")
            print(f"{red}{head}{plain}{newline}{hint}", file=sys.stderr)
    except BrokenPipeError:
        return _stdout_closed()
    return code


def _defect(error: Exception, words: Sequence[str], as_json: bool) -> int:
    missing = missing_module(error) if isinstance(error, ModuleNotFoundError) else None
    known = MachineError(missing) if missing is not None else exhausted(error)  # an extra that was not declared
    if known is not None:
        return _ended(known, as_json)
    if os.environ.get("HEDDLE_DEBUG"):
        traceback.print_exception(error)
        return DEFECT
    from heddle.base import state
    from heddle.base.userfiles import make_dir

    report = state.state_dir() / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    said = f"{type(error).__name__}: {error}".split("\n")[0][:200]
    hint = "run it with HEDDLE_DEBUG=1 to see the traceback"
    try:
        make_dir(report.parent)
        state.write_file(report, f"Heddle {VERSION}: {words}\n\n" + "".join(traceback.format_exception(error)))
        hint = f"please report it, with the file {report}"
    except HeddleError:
        pass
    why = "is a defect of Heddle, not yours"
    if plugin := plugin_of(error):
        why, hint = f"was raised by the plugin {plugin}", hint.replace("please report it", "report it to its author")
    return _report("Defect", DEFECT, [Problem("", said, why, hint)], as_json)
