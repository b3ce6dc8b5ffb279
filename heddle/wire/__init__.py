"""RoCEv2 as bytes: layout, ICRC, source ports, scapy layers, dissection, capture files."""
