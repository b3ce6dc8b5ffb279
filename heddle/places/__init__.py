"""Where a verb runs: here, in a virtual machine (`--on vm`), or on a lab server (`--on ssh:user@host[:port]`).

In:  what was typed, and the user's config file.
Out: None (here), or a Place that runs the same verb elsewhere and returns its exit code.

choice.py       the place that the user chose: its text, the config file, the kinds of places
ssh.py          ~/.ssh/config, jump hosts, the server's host key, login
sync.py         the files that travel: the project and the verb's input, and what the verb wrote
session.py      one verb on a server: its streams, this machine's terminal and signals, files and exit code
server.py       runs on the server; it is sent with each call
"""
