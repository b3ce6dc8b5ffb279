"""Where a verb runs: here, in a virtual machine (`--place vm`), or on a lab server (`--place ssh:user@host[:port]`).

In:  what was typed, and the user's config file.
Out: None (here), or a Place that runs the same verb elsewhere and returns its exit code.

call.py         a verb to run in another place, and the protocol of places
kinds.py        the kinds of places, one line each
choice.py       the place that the user chose
address.py      the text of a place -> Address, or the mistake in it
config.py       ~/.config/heddle/config.yml
known_hosts.py  check the server's host key
ssh.py          connect and authenticate
sync.py         the files of the project that are copied to the server
session.py      one verb on a server: its streams, signals, files and exit code
channel.py      the frames between this machine and the server
server.py       the agent: it runs on the server and is sent with each call

A new kind of place: one file, one line in kinds.py.
"""
