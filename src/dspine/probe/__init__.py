"""Probes: the readout, timing and predecessor measurements that the design rests on will live here."""
