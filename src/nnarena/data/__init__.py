"""Real data sets: got once, verified, kept in one folder in a safe format, and never downloaded behind one's back.

nnarena.data.get("mnist")                        download, verify, keep
nnarena.data.import_files("mnist", ["mnist.npz"])    the same from files at hand
nnarena.data.load("mnist")                       the arrays, by name
nnarena.data.catalogue()                         what there is, and what is here
"""

from nnarena.data.sets import Entry, catalogue, get, import_files, load, names

__all__ = ["Entry", "catalogue", "get", "import_files", "load", "names"]
