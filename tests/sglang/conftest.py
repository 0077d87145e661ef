"""The plugin inside SGLang itself, on a CPU: one server without a drafter and one with nano's, for all tests.

    make test-sglang                    # or: make test-sglang SGLANG=0.5.23

It needs the environment that this builds; where SGLang is missing, nothing here is collected. Both servers take a
minute or two to start. To keep them while working on a test, start `python -m tests.sglang.serving`, which prints a
line to set before pytest.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["*"]
else:
    from tests.sglang.serving import Server, both

    from dspine.decode.engine import Engine
    from dspine.target.model import Target

    @pytest.fixture(scope="session")
    def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
        with both(Path(tmp_path_factory.mktemp("servers"))) as servers:
            yield servers

    @pytest.fixture
    def plain(_servers: tuple[Server, Server]) -> Server:
        """SGLang without a drafter."""
        return _servers[0]

    @pytest.fixture
    def drafted(_servers: tuple[Server, Server]) -> Server:
        """SGLang under DSPINE."""
        return _servers[1]

    @pytest.fixture(scope="session")
    def target() -> Target:
        from dspine import load_target

        return load_target("nano", packed=False)

    @pytest.fixture(scope="session")
    def engine(target: Target) -> Engine:
        """Our own engine with the same drafter."""
        from dspine import load_drafter

        return Engine(target, load_drafter("nano", target, packed=False))
