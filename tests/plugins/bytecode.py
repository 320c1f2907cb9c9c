"""Every process of the tests keeps the bytecode of what it imports, whatever PYTHONDONTWRITEBYTECODE says.

The suite starts hundreds of processes (servers, commands, workers, those of Spark). Without bytecode on disk each of
them compiles all of its imports anew, which is two thirds of its start.
"""

import os
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
