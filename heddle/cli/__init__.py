"""The command line: words in, one result out. Verbs are in *_verb.py and *_verbs.py, and tasks.py lists them.

argv.py       a verb's options and their words; words after `./inv VERB` -> keyword arguments, or problems
helptexts.py  the options of verbs: help, and values for completion (completion.py)
verbs.py      the `@verb` decorator: flags that every verb has, root, system packages, places
program.py    what `./inv` does with a verb's name; help and lists
console.py    results on stdout, progress on stderr; endings.py: exit codes and errors

A verb that needs more than its own file imports the rest when it runs: `./inv --list` must be quick.
"""
