"""A worker in which rank 1 sends one wrong byte over TCP: `python -m tests.wrongbyte`."""

from __future__ import annotations

import sys
from dataclasses import replace

from heddle.endpoints import worker
from heddle.endpoints.nic.qpend import Message
from heddle_plugins.storage import tcploop

if __name__ == "__main__":
    _post, _done = tcploop.Sender.post, list[int]()

    def wrongly(self: tcploop.Sender, message: Message) -> None:
        if self.rank == 1 and not _done:
            _done.append(1)
            payload = bytearray(message.payload)
            payload[-1] ^= 0x80  # a sign: no sum hides it
            message = replace(message, payload=memoryview(payload))
        _post(self, message)

    tcploop.Sender.post = wrongly  # type: ignore[method-assign]
    sys.exit(worker.main())
