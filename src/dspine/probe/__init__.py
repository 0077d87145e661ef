"""The probe room: what a frozen drafter knows at which depth, and what it needs to be told.

The measurements that the method rests on (DSpine, arXiv 2609.36173: readout, timing, predecessor), for any drafter of
the DFlash family, and a look inside DSpine's own injection.
"""
