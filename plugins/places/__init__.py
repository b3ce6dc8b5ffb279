"""Where verbs run beside this machine: lab servers by SSH, and the VM."""
