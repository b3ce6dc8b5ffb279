"""What a shell offers for the word under its cursor, and the scripts that make it ask.

In:  the words typed so far, the program's own first, the one under the cursor last (empty after a space).
Out: candidates; none where a file or a free word stands, so that the shell offers files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from heddle.cli.argv import Parameter, Verb

# The script asks the very ./inv that is being typed: there is no `inv` in PATH.
SCRIPTS: Final = {
    "bash": """\
_complete_inv() {
    local IFS=$'\\n' offered
    offered=$("${COMP_WORDS[0]}" --complete -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null)
    COMPREPLY=( $(compgen -W "$offered" -- "$2") )
}
complete -o default -F _complete_inv inv ./inv
""",
    "zsh": """\
_complete_inv() {
    local -a typed
    local at
    read -cA typed
    read -cn at
    reply=( ${(f)"$("${typed[1]}" --complete -- "${(@)typed[1,at]}" 2>/dev/null)"} )
}
compctl -K _complete_inv + -f inv ./inv
""",
    "fish": """\
function __complete_inv
    set -l typed (commandline -opc)
    $typed[1] --complete -- $typed (commandline -ct) 2>/dev/null
end
complete --command inv --arguments '(__complete_inv)'
""",
}


def candidates(words: Sequence[str], verbs: Mapping[str, Verb], core: Sequence[str]) -> list[str]:
    """What can stand in place of the last word. core: flags of ./inv itself."""
    *before, last = list(words[1:]) or [""]
    if not before:
        return list(core) if last.startswith("-") else list(verbs)
    verb = verbs.get(before[0])
    if verb is None:
        return []
    waiting = verb.positionals
    value_of: Parameter | None = None
    for word in before[1:]:
        if value_of is not None:
            value_of = None
        elif word.startswith("-") and word != "--":
            flag = verb.flags.get(word)
            value_of = flag if flag is not None and flag.kind != "bool" else None
        elif not waiting or waiting[0].kind != "list":
            waiting = waiting[1:]
        if word == "--" or (verb.rest_after_positionals and not waiting):
            return []  # words of pytest, or of the command that is to run in a node
    if value_of is None and last.startswith("-"):
        return sorted(verb.flags)
    wanted = value_of or next(iter(waiting), None)
    if wanted is not None and _is_run(verb, wanted):
        return _runs(_labs_named(verb, before[1:]))
    return _KNOWN[wanted.word]() if wanted is not None and wanted.word in _KNOWN else []


def _fabrics() -> list[str]:
    from heddle.spec.load import presets

    return presets()


def _runtimes() -> list[str]:
    from heddle.runtimes.registry import RUNTIMES

    return list(RUNTIMES)


def _dialects() -> list[str]:
    from heddle.render.dialects import DIALECTS

    return list(DIALECTS)


def _mgmts() -> list[str]:
    from heddle.render.dialects import MGMTS

    return list(MGMTS)


def _kinds() -> list[str]:
    from heddle.views.graph import KINDS

    return list(KINDS)


def _modes() -> list[str]:
    from heddle.fabric.hashmodes import MODES

    return list(MODES)


def _collectives() -> list[str]:
    from heddle.traffic.collectives import patterns

    return list(dict.fromkeys(collective for collective, _ in patterns()))


def _algorithms() -> list[str]:
    from heddle.traffic.collectives import patterns

    return list(dict.fromkeys(algorithm for _, algorithm in patterns()))


def _transports() -> list[str]:
    from heddle.endpoints.transports import TRANSPORTS

    return list(TRANSPORTS)


def _plans() -> list[str]:
    from heddle.forecast.planfile import plan_words, plans

    return [*plan_words(), *plans()]


def _labs() -> list[str]:
    from heddle.base.state import labs

    return list(labs())


def _is_run(verb: Verb, wanted: Parameter) -> bool:
    """Whether a value is the ID of a run."""
    return wanted.word == "run" or (verb.name, wanted.word) == ("runs", "remove")


def _labs_named(verb: Verb, words: Sequence[str]) -> list[str]:
    """The lab that was typed already, with its flag or as a word; without one all labs."""
    known = _labs()
    takes_word = any(parameter.word == "lab" for parameter in verb.positionals)
    for before, word in zip(["", *words], words, strict=False):
        name = word.removeprefix("--lab=")
        if name in known and (before == "--lab" or name != word or (takes_word and not before.startswith("-"))):
            return [name]
    return known


def _runs(labs: Sequence[str]) -> list[str]:
    from heddle.runs.history import LAST, History

    ids = {each for lab in labs for each in History.named(lab).ids()}
    return [*sorted(ids, key=int), LAST] if ids else []


def _settings() -> list[str]:
    from heddle.lab.requeue import LIVE
    from heddle.spec.queuespec import QueuesSpec
    from heddle.spec.shapes import SHAPES
    from heddle.spec.wording import paths_of

    words = dict.fromkeys(word for spec in SHAPES.values() for word in spec.levels)
    paths = [path for path in paths_of(QueuesSpec) if path != "buffer.switch"]  # `buffer` says the same
    paths += [f"buffer.{word}" for word in words]
    groups = {path.rpartition(".")[0] for path in paths} | {"ecn.classes"}
    groups -= {"buffer"}  # which takes one size for all switches, too
    return [f"{path}=" for path in paths if path.startswith(LIVE) and path not in groups]


_KNOWN: Final[Mapping[str, Callable[[], list[str]]]] = {
    "action": lambda: ["set", "reset"],
    "algorithm": _algorithms,
    "collective": _collectives,
    "setting": _settings,
    "fabric": _fabrics,
    "runtime": _runtimes,
    "dialect": _dialects,
    "mgmt": _mgmts,
    "kind": _kinds,
    "lab": _labs,
    "mode": _modes,
    "plan": _plans,
    "predict": _fabrics,
    "transport": _transports,
    "fastpath": lambda: ["auto", "on", "off"],
    "format": lambda: ["text", "json"],
}
# What `--help` says before the words of a table that others add to.
_LISTED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("algorithm", "collective", "mode", "transport"), "one of"),
    **dict.fromkeys(("fabric", "predict"), "presets:"),
}


def listed(parameter: Parameter) -> str:
    """`; one of all-reduce, all-to-all, incast`: behind the help of a parameter whose words are those of a table."""
    word = parameter.word
    return f"; {_LISTED[word]} {', '.join(_KNOWN[word]())}" if word in _LISTED else ""
