"""Python models that run PyTorch in the processes of instances.

Packages of AOTInductor hold the interpreter's lock while they run, and the modules of `runtime: "model.py"` are their
users' code: both get the process of a Python model.
"""
