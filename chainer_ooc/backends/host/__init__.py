"""The host device: near memory is the process's private memory, far memory a spill file."""
