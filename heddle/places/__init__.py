"""Where a verb runs: here, in a virtual machine (`--place vm`), or on a lab server (`--place ssh:user@host[:port]`).

In:  what was typed, and the user's config file.
Out: None (here), or a Place that runs the same verb elsewhere and returns its exit code.

choice.py       the place that the user chose, the config file, the kinds of places
call.py         a verb to run in another place, and the protocol of places
address.py      the text of a place -> Address, or the mistake in it
ssh.py          ~/.ssh/config, jump hosts, login
hostkeys.py     check the server's host key
sync.py         the files that travel: the project and the verb's input, and what the verb wrote
session.py      one verb on a server: its streams, signals, files and exit code
signals.py      this machine's terminal and signals meanwhile
server.py       runs on the server; it is sent with each call
"""
