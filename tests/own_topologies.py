"""Topologies in the style of containerlab's own examples, for tests: nothing of Heddle's rendering is in them."""

from __future__ import annotations

from pathlib import Path

DAEMONS = """zebra=yes
bgpd=yes
vtysh_enable=yes
zebra_options="  -A 127.0.0.1 -s 90000000"
bgpd_options="   -A 127.0.0.1"
"""


def mini_clos(directory: Path, image: str = "", *, policy: str = "") -> Path:
    """2 leaves x 2 spines by numbered BGP, a host on each leaf; dashes and capitals in names, brief links.

    image: of switches and hosts. policy: fib_multipath_hash_policy of the switches, in place of Heddle's.
    """
    configs = directory / "configs"
    configs.mkdir()
    (configs / "daemons").write_text(DAEMONS)
    (configs / "vtysh.conf").write_text("service integrated-vtysh-config\n")
    for leaf in (1, 2):
        ports = {"eth1": f"10.0.{leaf}.1/31", "eth2": f"10.0.{leaf}.3/31", "eth3": f"10.1.{leaf}.1/24"}
        peers = {f"10.0.{leaf}.0": 65100, f"10.0.{leaf}.2": 65100}
        networks = [f"10.1.{leaf}.0/24", f"10.255.0.{leaf}/32"]
        config = frr_conf(f"leaf-{leaf}", 65000 + leaf, f"10.255.0.{leaf}", ports, peers, networks)
        (configs / f"leaf-{leaf}.conf").write_text(config)
    for spine in (1, 2):
        low = 2 * (spine - 1)
        ports = {f"eth{leaf}": f"10.0.{leaf}.{low}/31" for leaf in (1, 2)}
        peers = {f"10.0.{leaf}.{low + 1}": 65000 + leaf for leaf in (1, 2)}
        config = frr_conf(f"Spine-{spine}", 65100, f"10.255.1.{spine}", ports, peers, [])
        (configs / f"Spine-{spine}.conf").write_text(config)
    sysctls = f"      sysctls: {{net.ipv4.fib_multipath_hash_policy: {policy}}}\n" if policy else ""
    path = directory / "Mini-Clos.clab.yml"
    path.write_text(
        f"""name: Mini-Clos
prefix: ""
mgmt: {{network: custom, ipv4-subnet: 172.100.100.0/24}}
topology:
  defaults: {{kind: linux{f", image: {image}" if image else ""}}}
  groups:
    switches:
      binds:
        - configs/daemons:/etc/frr/daemons
        - configs/vtysh.conf:/etc/frr/vtysh.conf
        - configs/__clabNodeName__.conf:/etc/frr/frr.conf
{sysctls}    servers:
      env: {{ROLE: "${{ROLE:=server}} for $$5"}}
  nodes:
    leaf-1: {{group: switches}}
    leaf-2: {{group: switches, mgmt-ipv4: 172.100.100.12}}
    Spine-1: {{group: switches}}
    Spine-2: {{group: switches}}
    h1:
      group: servers
      exec: [ip addr add 10.1.1.2/24 dev eth1, ip route add 10.0.0.0/8 via 10.1.1.1]
    h2:
      group: servers
      exec: [ip addr add 10.1.2.2/24 dev eth1, ip route add 10.0.0.0/8 via 10.1.2.1]
  links:
    - endpoints: ["leaf-1:eth1", "Spine-1:eth1"]
    - endpoints: ["leaf-1:eth2", "Spine-2:eth1"]
    - endpoints: ["leaf-2:eth1", "Spine-1:eth2"]
    - endpoints: ["leaf-2:eth2", "Spine-2:eth2"]
    - {{endpoints: ["leaf-1:eth3", "h1:eth1"], mtu: 4200, vars: {{rate_bps: 50000000}}}}
    - {{endpoints: ["leaf-2:eth3", "h2:eth1"], mtu: 4200, vars: {{rate_bps: 50000000}}}}
"""
    )
    return path


def frr_conf(name: str, asn: int, router_id: str, ports: dict[str, str], peers: dict[str, int], nets: list[str]) -> str:
    """An frr.conf with addresses on interfaces and numbered eBGP sessions."""
    lines = ["frr defaults datacenter", f"hostname {name}", "!"]
    for port, address in {"lo": f"{router_id}/32", **ports}.items():
        lines += [f"interface {port}", f" ip address {address}", "!"]
    lines += [f"router bgp {asn}", f" bgp router-id {router_id}", " no bgp ebgp-requires-policy"]
    lines += [f" neighbor {peer} remote-as {other}" for peer, other in peers.items()]
    lines += [" !", " address-family ipv4 unicast", *(f"  network {net}" for net in nets), "  maximum-paths 8"]
    return "\n".join([*lines, " exit-address-family", "!"]) + "\n"
