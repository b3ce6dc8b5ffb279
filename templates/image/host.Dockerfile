# A host. Heddle's endpoints enter its namespace from outside; the image has tools for users, and
# Python's standard core for those who want to send a frame of their own (workshop unit 06).
ARG BASE=debian:trixie-slim
FROM ${BASE}
LABEL heddle=host
RUN export DEBIAN_FRONTEND=noninteractive \
 && apt-get update \
 && apt-get install -y --no-install-recommends bash iproute2 ethtool procps tcpdump iputils-ping traceroute iperf3 python3-minimal tini \
 && find /usr/lib/python3* /usr/share/python3 -name __pycache__ -prune -exec rm -r '{}' + \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log
COPY node.sh /usr/local/bin/heddle-node
ENTRYPOINT ["/usr/bin/tini", "--", "/bin/sh", "/usr/local/bin/heddle-node"]
