"""What the process of a Python model has on its path: the modules that models import, and the package behind them.

They run in the model's interpreter, which needs Python 3.9 and numpy, and import nothing else of the project.
"""
