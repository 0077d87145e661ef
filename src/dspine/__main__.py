"""`python -m dspine`: the same command as `dspine`."""

from __future__ import annotations

from dspine.cli import main

if __name__ == "__main__":
    main()
