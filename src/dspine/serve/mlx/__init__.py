"""DSpine and DFlash drafters over mlx-lm's models: Apple silicon, and slowly any CPU that `mlx[cpu]` runs on.

Nothing outside this package imports MLX, and `dspine.serve.mlx.installed` alone works without it.
"""
