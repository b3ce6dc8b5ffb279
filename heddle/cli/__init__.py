"""The command line: words in, one result out. Verbs are in tasks.py and in NAME_verb.py; all share these modules.

argv.py     words after `./inv VERB` -> keyword arguments, or problems
verbs.py    the `@verb` decorator: flags that every verb has, root, system packages
program.py  invoke's Program with our parser, help and endings
console.py  results on stdout, progress on stderr
"""
