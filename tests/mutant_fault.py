"""What a fault of mutants.py is. mutant_list.py and the other mutant_*.py have them."""
from collections import namedtuple

Mutant = namedtuple("Mutant", "name file old new tests")
M = []


def fault(name, file, old, new, *tests):
    M.append(Mutant(name, file, old, new, tests))
