"""RoCEv2 as bytes: layout, ICRC, source ports, dissection, capture files."""
