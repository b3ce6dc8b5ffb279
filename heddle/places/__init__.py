"""Where a verb runs: here, in a virtual machine (`--place vm`), or on a lab server (`--place ssh:user@host[:port]`).

In:  what was typed, and the user's config file.
Out: None (here), or a Place that runs the same verb elsewhere and returns its exit code.

call.py         a verb to run in another place, and the protocol of places
kinds.py        the kinds of places, one line each
choice.py       the place that the user chose
address.py      the text of a place -> Address, or the mistake in it
config.py       ~/.config/heddle/config.yml
ssh.py          ~/.ssh/config, jump hosts, login
hostkeys.py     check the server's host key
sync.py         the files of the project that are copied to the server
transfer.py     the files of a verb, both ways
session.py      one verb on a server: its streams, signals, files and exit code
signals.py      this machine's terminal and signals meanwhile
server.py       runs on the server; it is sent with each call

A new kind of place: one file, one line in kinds.py.
"""
