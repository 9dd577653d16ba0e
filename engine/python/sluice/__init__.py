"""sluice from Python: what a job would take under other flags (`sluice.whatif`).

A keyword is a flag of the `sluice` program with _ for -: `mem_ram="2G"` is `--mem-ram 2G`. No torch; only drawings need a package,
matplotlib.
"""
from . import whatif
from ._program import Error

__all__ = ["Error", "whatif"]
