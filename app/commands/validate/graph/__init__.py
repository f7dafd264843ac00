"""The graphs of ensembles, drawn as text, as SVG and for graphviz."""
