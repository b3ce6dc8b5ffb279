"""Where a verb runs: here, or on a lab server over SSH (`--place ssh:user@host[:port]`, or `place:` in a config file).

In:  what was typed, and the user's config file.
Out: None (here), or a Place that runs the same verb elsewhere and returns its exit code.

call.py         a verb that is to run elsewhere, and what a place is
kinds.py        the kinds of places, one line each
choice.py       the place that the user chose
address.py      the text of a place -> Address, or what is wrong with it
config.py       ~/.config/heddle/config.yml
known_hosts.py  is this the server that it says it is
ssh.py          connect and authenticate
sync.py         what of the project is brought over
session.py      one verb over there: its streams, its signals, its files, its end
channel.py      the frames between here and there
server.py       what runs there; it is sent along with each call

A new kind of place: one file, one line in kinds.py.
"""
