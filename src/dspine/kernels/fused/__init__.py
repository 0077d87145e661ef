"""Triton kernels, each beside a plain definition of `dspine.kernels` and with its signature; the extra `kernels`."""
