"""DSpine drafters whose design is not the paper's, one switch at a time and some together."""

from __future__ import annotations

from typing import Any

VARIANTS: dict[str, dict[str, Any]] = {
    "both ways": {"is_causal": False},
    "no injection": {"injected_layers": (), "refined": False},
    "last layer": {"injected_layers": (1,), "num_hidden_layers": 2, "target_layer_ids": (1, 3)},
    "first layer": {"injected_layers": (0,), "refined": False},
    "tokens alone": {"predecessor": "none"},
    "reach 2": {"reach": 2},
    "reach 3, no gate": {"reach": 3, "gated": False},
    "no gate": {"gated": False},
    "no refinement": {"refined": False},
}
