"""Dumps of NCCL's graphs and topologies as placements, and what is wrong with those that are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
from heddle_plugins.engineering.mincut import free_hosts
from heddle_plugins.engineering.nccldumps import on_hosts, read_dumps
from tests.answers import Answers

HEAD = '<graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="40" speedinter="24" typeintra="NVL">'


def graph(*channels: str) -> str:
    """`0:4,5:0`: a channel enters by NIC 0, passes ranks 4 and 5, and leaves by NIC 0."""
    rows = []
    for channel in channels:
        enters, ranks, leaves = channel.split(":")
        gpus = "".join(f'<gpu dev="0x{int(rank) % 4:x}" rank="{rank}"/>\n' for rank in ranks.split(","))
        rows.append(f'<channel>\n<net dev="{enters}"/>\n{gpus}<net dev="{leaves}"/>\n</channel>\n')
    return f'<graphs version="1">\n{HEAD}\n{"".join(rows)}</graph>\n</graphs>\n'


# Two PCI switches, each with a GPU and a NIC; and a NIC of the host, which is near to none. Device numbers cross.
TOPOLOGY = """<system version="1">
  <cpu host_hash="0x7" numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:01:00.0" class="0x060400"><pci busid="0000:02:00.0" class="0x030200"><gpu dev="0" rank="4"/></pci>
      <pci busid="0000:03:00.0"><nic><net name="mlx5_1" dev="1" speed="400000" port="1"/></nic></pci></pci>
    <pci busid="0000:11:00.0" class="0x060400"><pci busid="0000:12:00.0" class="0x030200"><gpu dev="1" rank="5"/></pci>
      <pci busid="0000:13:00.0"><nic><net name="mlx5_0" dev="0" speed="400000" port="1"/></nic></pci></pci>
    <pci busid="0000:21:00.0" class="0x020700"><nic><net name="bond0" dev="2" speed="25000" net="0"/></nic></pci>
  </cpu>
</system>
"""


def written(folder: Path, **texts: str) -> list[str]:
    for name, text in texts.items():
        (folder / f"{name}.xml").write_text(text)
    return [str(folder / f"{name}.xml") for name in texts]


def nics(files: list[str], ranks: int | None = None) -> list[str]:
    fabric = load_fabric("rail").fabric
    return [port.ref for port in on_hosts(read_dumps(files, ranks), free_hosts(fabric, fabric.nics))]


def test_each_rank_has_the_nic_by_which_a_ring_enters_there(tmp_path: Path) -> None:
    files = written(tmp_path, a=graph("0:2,3:0", "1:3,2:1"), b=graph("1:0,1:1", "0:1,0:0"))
    dumped = read_dumps(files)
    assert [dict(host.nics) for host in dumped] == [{0: 1, 1: 0}, {2: 0, 3: 1}]
    assert dumped[0].rings == ((0, 1), (1, 0))
    assert nics(files) == ["host1:eth2", "host1:eth1", "host2:eth1", "host2:eth2"]


def test_a_file_with_the_name_of_a_host_is_that_host(tmp_path: Path) -> None:
    files = written(tmp_path, host4=graph("0:0,1:0"), any=graph("0:2,3:0"))
    assert [ref.partition(":")[0] for ref in nics(files)] == ["host4", "host4", "host1", "host1"]


def test_a_topology_gives_the_nearest_nic_where_the_rings_do_not_say(tmp_path: Path) -> None:
    (alone,) = read_dumps(written(tmp_path, t=TOPOLOGY.replace('"4"', '"0"', 1).replace('rank="5"', 'rank="1"')))
    assert dict(alone.nics) == {0: 1, 1: 0}
    files = written(tmp_path, g=graph("0:4,5:0"), t=TOPOLOGY, other=graph("0:0,1,2,3:1"))
    assert dict(read_dumps(files)[1].nics) == {4: 0, 5: 0}, "rank 5 is the last one of a ring that leaves by NIC 0"
    files = written(tmp_path, g=graph("0:4,7,5,6:0"), t=TOPOLOGY)
    with pytest.raises(InputError, match="has rank 4 beside other ranks than"):
        read_dumps(files)


# As RCCL writes it: a link to the other GPU in each, and the NIC beside its PCI bridge.
RCCL = """<system version="2">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="17">
{}  </cpu>
</system>
"""
RCCL_GPU = """    <pci busid="0000:{0}1:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:{0}2:00.0" class="0x038000" link_speed="16 GT/s" link_width="16">
        <gpu dev="{0}" sm="90" gcn="942" arch="38911" rank="{0}" gdr="1">
          <xgmi target="0000:{1}2:00.0" count="1" tclass="0x038000"/></gpu>
      </pci>
      <nic><net name="ionic_{0}" dev="{0}" speed="400000" port="1" guid="0x1" maxconn="65536" gdr="1"/></nic>
    </pci>
"""


def test_a_system_of_rccl_is_one_of_nccl(tmp_path: Path) -> None:
    text = RCCL.format(RCCL_GPU.format(0, 1) + RCCL_GPU.format(1, 0))
    assert [dict(host.nics) for host in read_dumps(written(tmp_path, r=text), 8)] == [
        {rank: 0, rank + 1: 1} for rank in (0, 2, 4, 6)
    ]
    older = read_dumps(written(tmp_path, n=text.replace('version="2"', 'version="1"')), 8)
    assert [host.nics for host in older] == [host.nics for host in read_dumps(written(tmp_path, r=text), 8)]


def test_ranks_that_share_a_nic_get_one_each(tmp_path: Path) -> None:
    assert nics(written(tmp_path, a=graph("0:0,1:0"))) == ["host1:eth1", "host1:eth2"]


def test_the_file_of_one_host_stands_for_all_that_are_like_it(tmp_path: Path) -> None:
    found = nics(written(tmp_path, a=graph("1:0,1:0")), 6)
    assert found == [f"host{host}:{nic}" for host in (1, 2, 3) for nic in ("eth2", "eth1")]


def test_two_hosts_of_one_graph_are_told_apart_by_the_number_above_the_device(tmp_path: Path) -> None:
    text = graph("0:0,1:0").replace('dev="0x1"', 'dev="0x100000000000001"')
    assert [[*host.nics] for host in read_dumps(written(tmp_path, a=text))] == [[0], [1]]


def test_files_that_are_wrong_are_named_with_their_line(tmp_path: Path, answers: Answers) -> None:
    answers(lambda text: nics(written(tmp_path, x=text)))


def test_a_wrong_rank_is_one_error_however_many_channels_have_it(tmp_path: Path) -> None:
    text = graph("0:0,1:0", "0:1,0:0", "0:0,1:0").replace('rank="1"', 'rank="one"').replace('rank="0"', 'rank="-0"')
    with pytest.raises(InputError) as error:
        read_dumps(written(tmp_path, x=text))
    assert [str(p).replace(f"{tmp_path}/", "") for p in error.value.problems] == [
        "x.xml:5  rank='-0' is not a whole number",
        "x.xml:6  rank='one' is not a whole number",
    ]


def test_the_file_with_a_rank_above_a_missing_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"b\.xml  rank 4 is there, but no file has rank 2"):
        read_dumps(written(tmp_path, a=graph("0:0,1:0"), b=graph("0:4,5:0")))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.xml cannot be read"):
        read_dumps([str(tmp_path / "no.xml")])


def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dump.xml")
    with pytest.raises(InputError, match="cannot be read"):
        read_dumps([str(tmp_path / "dump.xml")])
