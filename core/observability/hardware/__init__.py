"""The hardware that the server runs on: processors, memory, control groups and GPUs, and the thread that reads them."""
