"""How the committed objects are built: C that runs in a process, BPF programs, and the constants of both."""
