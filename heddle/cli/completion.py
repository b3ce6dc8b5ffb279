"""Completion: the candidates for the word under the cursor, and the shells' scripts that request them.

In:  the words typed so far: first the program's name, last the word under the cursor (empty after a space).
Out: candidates; none for a file or a free word, so that the shell offers files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from heddle.base.problems import HeddleError
from heddle.base.progname import INSTALLED, program
from heddle.cli.argv import Parameter, Typed, Verb

# The script runs the program that the user types: ./inv is not in PATH.
SCRIPTS: Final = {
    "bash": """\
_complete_inv() {
    # Readline splits words at = and : too, so the words are taken from the line.
    local line=${COMP_LINE:0:COMP_POINT} IFS=$' \\t\\n' typed last offered
    read -ra typed <<< "$line"
    [[ $line == *[[:blank:]] ]] && typed+=("")
    while [[ ${#typed[@]} -gt 1 && ${typed[0]} != "${COMP_WORDS[0]}" ]]; do typed=("${typed[@]:1}"); done
    last=${typed[${#typed[@]}-1]}
    offered=$("${typed[0]}" --complete -- "${typed[@]}" 2>/dev/null)
    IFS=$'\\n'
    COMPREPLY=( $(compgen -W "$offered" -- "$last") )
    # It replaces only what follows the last of these characters.
    if [[ $last == *[:=]* ]]; then COMPREPLY=( "${COMPREPLY[@]#"${last%"${last##*[:=]}"}"}" ); fi
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[:=] ]]; then compopt -o nospace 2>/dev/null; fi
    return 0
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
    set -l last (commandline -ct)
    set -l offered ($typed[1] --complete -- $typed "$last" 2>/dev/null)
    set -l fitting (string match --regex -- '^'(string escape --style=regex -- "$last")'.*' $offered)
    if set -q fitting[1]
        printf '%s\\n' $fitting
    else
        __fish_complete_path "$last"
    end
end
complete --command inv --no-files --arguments '(__complete_inv)'
""",
}


def script(shell: str) -> str:
    """A shell's completion script for the program's name (see heddle/base/progname.py)."""
    text = SCRIPTS[shell]
    if program() == INSTALLED:
        text = text.replace("inv ./inv", INSTALLED).replace("--command inv", f"--command {INSTALLED}")
        text = text.replace("_complete_inv", f"_complete_{INSTALLED}")
    return text


def candidates(words: Sequence[str], verbs: Mapping[str, Verb], core: Sequence[str]) -> list[str]:
    """Candidates for the last word. core: flags of ./inv itself."""
    *before, last = list(words[1:]) or [""]
    if not before or before == ["help"]:
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
            return []  # words of pytest, or of a command in a node
    name, equals, text = last.partition("=")
    if value_of is None and equals and name in verb.flags:
        return [f"{name}={each}" for each in _values(verb, verb.flags[name], before[1:], text)]
    if value_of is None and last.startswith("-"):
        return sorted(verb.flags)
    wanted = value_of or next(iter(waiting), None)
    return _values(verb, wanted, before[1:], last) if wanted is not None else []


def _values(verb: Verb, wanted: Parameter, before: Sequence[str], last: str) -> list[str]:
    """Values of a parameter; a shell filters them by the typed part."""
    with suppress(HeddleError):
        return wanted.option.offered(Typed(verb, wanted, before, last))
    return []
