"""A queue pair whose next MAC address is not found at once. Runs over lossy links: tests/netns/test_rxe.py."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest

from heddle.endpoints.rdma import verbslib as ib
from heddle.endpoints.rdma.verbsdevice import Peer, VerbsQp


class Qp(VerbsQp):
    """One whose device answers each change with the next of these codes, then with 0."""

    def __init__(self, *codes: int) -> None:
        self.asked = list[int]()
        self._codes = iter(codes)
        self._qp = None
        self._device = SimpleNamespace(code=SimpleNamespace(ibv_modify_qp=self._answer), gid_index=1)  # type: ignore[assignment]

    def _answer(self, qp: object, attr: object, mask: int) -> int:
        self.asked.append(mask)
        return next(self._codes, 0)


def test_a_lookup_that_timed_out_is_tried_again() -> None:
    qp = Qp(errno.ETIMEDOUT, errno.ETIMEDOUT)
    qp.connect(Peer("10.0.0.1", 17, 0))
    to_rtr, to_rts = qp.asked[0], qp.asked[-1]
    assert qp.asked == [to_rtr] * 3 + [to_rts] and to_rtr & ib.MASK_AV and not to_rts & ib.MASK_AV


@pytest.mark.parametrize(("codes", "calls"), [([errno.ETIMEDOUT] * 9, 5), ([errno.EINVAL], 1)])
def test_one_that_never_succeeds_or_fails_otherwise_is_an_error(codes: list[int], calls: int) -> None:
    qp = Qp(*codes)
    with pytest.raises(OSError, match="ibv_modify_qp: ") as raised:
        qp.connect(Peer("10.0.0.1", 17, 0))
    assert raised.value.errno == codes[0] and len(qp.asked) == calls
