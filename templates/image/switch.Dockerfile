# A switch: FRR, the programs of its start script, and tools for users. FRR runs when containerlab's exec starts it.
ARG BASE=debian:trixie-slim
FROM ${BASE}
LABEL heddle=switch
# Debian's frr package starts FRR at installation, unless policy-rc.d forbids it.
RUN printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d \
 && chmod 755 /usr/sbin/policy-rc.d \
 && export DEBIAN_FRONTEND=noninteractive \
 && apt-get update \
 && apt-get install -y --no-install-recommends frr iproute2 ethtool procps tcpdump iputils-ping traceroute tini \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log \
 && install -d -o frr -g frr -m 755 /etc/frr /run/frr /var/log/frr
COPY node.sh /usr/local/bin/heddle-node
ENTRYPOINT ["/usr/bin/tini", "--", "/bin/sh", "/usr/local/bin/heddle-node"]
