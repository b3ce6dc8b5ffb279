"""Files of other tools: traces, SONiC's configuration, MSCCL programs, dumps of NCCL."""
