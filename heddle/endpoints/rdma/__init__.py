"""Queue pairs of the hosts' own RDMA stack, by rdma-core's libibverbs."""
