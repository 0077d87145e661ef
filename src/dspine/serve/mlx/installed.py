"""Whether MLX is here.

One rule: whoever leads into this package asks here first, so that a machine without MLX gets a message, no traceback.
"""

from __future__ import annotations

import importlib.util

from dspine.errors import ServeError

NEEDED = ("mlx", "mlx_lm")


def require_mlx() -> None:
    """Return if MLX and mlx-lm can be imported.

    Raises:
        ServeError: naming what is missing and the command that installs it.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ServeError(
            f"the mlx backend needs {' and '.join(missing)}, not installed here",
            "On Apple silicon: pip install 'dspine[mlx]'. On Linux, slowly: pip install 'mlx[cpu]' mlx-lm",
        )
