"""rxe without a kernel that has it: the plan's numbers and ports, options that it refuses, and what doctor reads."""

from __future__ import annotations

import ctypes
import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from heddle.base.problems import InputError, MachineError
from heddle.base.process import Done
from heddle.endpoints.rdma import verbsdevice as ib
from heddle.endpoints.rdma.verbsdevice import SIZES, Peer, VerbsQp
from heddle.endpoints.transports.rxe import Rxe
from heddle.fabric.fabricfile import load_fabric
from heddle.kernel import rdma
from heddle.runs.run import job_plan, plan_run
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan, build_plan
from heddle.traffic.readers import SourcePorts
from heddle.wire.sport import SPORTS, flow_label_for_sport, sport_for_flow_label, sport_for_qps

TINY = load_fabric("tiny").fabric


def plan_of(**options: object) -> Plan:
    return job_plan(TINY, RunOptions(transport="rxe", **options))  # type: ignore[arg-type]


def test_a_new_device_numbers_queue_pairs_from_17_and_ports_follow_from_the_numbers() -> None:
    plan = plan_of()
    for endpoint in plan.endpoints:
        numbers = [qp.src_qpn for qp in plan.qps if qp.flow.src_rank == endpoint.rank]
        numbers += [qp.flow.qpn for qp in plan.qps if qp.flow.dst_rank == endpoint.rank]
        assert sorted(numbers) == [17, 18]
    assert all(qp.flow.sport == sport_for_qps(qp.src_qpn, qp.flow.qpn) for qp in plan.qps)


def test_the_kernels_nics_add_no_delay_and_the_header_says_so() -> None:
    for overrides, delays, said in (
        (["link.delay=shape"], 0, "not modelled: the kernel's NICs do not add link.delay (3 us one way on hardware)"),
        (["link.delay=shape", "link.delay_at=link"], 73, "1 to 3 us one way on hardware"),
        ([], 0, "not modelled (link.delay: 0)"),
    ):
        built = load_fabric("tiny", overrides=overrides).fabric
        plan = build_plan(built, RunOptions(transport="rxe"), 0, Rxe.numbering, nics_delay=False)
        Rxe.of(plan)
        assert {qp.delay_s for qp in plan.qps} == {0.0}
        assert plan.propagation.bdp_packets == delays
        assert plan.propagation.text().startswith(said)


def test_every_source_port_of_verbs_has_a_flow_label_that_is_not_0() -> None:
    for sport in SPORTS:
        label = flow_label_for_sport(sport)
        assert 0 < label < 1 << 20
        assert sport_for_flow_label(label) == sport
    with pytest.raises(ValueError, match="no flow label"):
        flow_label_for_sport(4791)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"window": 8}, "--window 8"),
        ({"qps": 16, "qp_mode": "round-robin"}, "--qps 16 --qp-mode round-robin"),
        ({"source_ports": SourcePorts("fixed", (4000,))}, "--sport"),
        ({"congestion": "dcqcn"}, "--cc dcqcn"),
    ],
)
def test_options_that_verbs_cannot_express_are_refused(options: dict[str, object], word: str) -> None:
    with pytest.raises(InputError) as caught:
        Rxe.of(plan_of(**options))
    assert caught.value.problems[0].what == word
    assert caught.value.problems[0].hint


def test_a_machine_without_soft_roce_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma, "_has_module", lambda *, load: False)
    with pytest.raises(MachineError) as caught:
        plan_run(TINY, RunOptions(transport="rxe"))
    assert "soft-RoCE" in caught.value.problems[0].what
    assert "--on vm" in caught.value.problems[0].hint or "iproute2" in caught.value.problems[0].hint


def test_names_of_devices_are_short_enough_for_ucx_and_differ() -> None:
    assert rdma.link_name("zone", "host16", "eth1") == "zone-host16-1"
    labs = ("zone", "training", "trainings", "abcdefghijkl")
    nics = [(f"host{host}", f"eth{port}") for host in range(1, 201) for port in range(1, 9)]
    nics += [("abcdefghijkl", "ens1f0np0"), ("abcdefghijkl", "ens1f0np1")]
    names = [rdma.link_name(lab, *nic) for lab in labs for nic in nics]
    assert max(map(len, names)) == 15
    assert len(set(names)) == len(names)
    for lab in labs:  # `down` finds those of its lab, and no others
        mine = [name for name in names if name.startswith(rdma.prefix_of(lab))]
        assert mine == [rdma.link_name(lab, *nic) for nic in nics]


def test_what_rdma_and_the_library_say_is_read() -> None:
    assert rdma._mode("netns shared privileged-qkey off monitor on\n") == "shared"
    assert rdma._mode("netns exclusive copy-on-fork on\n") == "exclusive"
    assert rdma._mode("") == ""
    # Structures have the sizes of the library.
    assert {kind: ctypes.sizeof(kind) for kind in SIZES} == SIZES
    # Parameters survive the way to a worker.
    made = Rxe.of(plan_of(timeout=14, retries=9))
    assert (made.params.timeout, made.params.retries) == (14, 7)
    assert Rxe.load(made.parameters()) == made


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_a_new_device_is_moved_where_devices_are_kept_apart(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed: list[str] = []

    def ran(argv: list[str], **_: object) -> Done:
        typed.append(" ".join(argv))
        refused = "dev set refused" in typed[-1]
        return Done((), int(refused), f"netns {mode}\n", "error: Operation not supported" if refused else "", 0.0)

    monkeypatch.setattr(rdma, "run", ran)
    monkeypatch.setattr(rdma, "find_program", lambda name, *_: name)
    rdma.add_links([(Path("/run/netns/lab-host1"), "lab-host1-eth1", "eth1")])
    made = "nsenter --net=/run/netns/lab-host1 rdma link add lab-host1-eth1 type rxe netdev eth1"
    moved = ["rdma dev set lab-host1-eth1 netns lab-host1"] if mode == "exclusive" else []
    assert typed == ["rdma system", made, *moved]
    if mode == "exclusive":
        with pytest.raises(MachineError) as caught:
            rdma.add_links([(Path("/proc/7/ns/net"), "refused", "eth1")])
        assert typed[-2:] == ["rdma dev set refused netns ../../proc/7/ns/net", "rdma link delete refused"]
        assert "cannot be moved to namespace /proc/7/ns/net: error: Operation not supported" in str(caught.value)
        assert "rdma system set netns shared" in str(caught.value)


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
