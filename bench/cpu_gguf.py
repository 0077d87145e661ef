"""A GGUF file with all tensors as float32, made from a quantised one, so that llama.cpp runs the numbers that we run.

One rule: metadata and tokenizer are the source's; only the tensors change, by the dequantisation that transformers
uses too. The file appears whole or not at all.
"""

from __future__ import annotations

import os
from pathlib import Path

import gguf
from gguf.quants import dequantize


def float32_gguf(source: Path, place: Path) -> Path:
    """Write `source` with float32 tensors to `place`, unless it is there already; returns `place`."""
    if place.is_file():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        _write(gguf.GGUFReader(source), aside)
        os.replace(aside, place)
    finally:
        aside.unlink(missing_ok=True)
    return place


def _write(reader: gguf.GGUFReader, file: Path) -> None:
    writer = gguf.GGUFWriter(file, reader.fields[gguf.Keys.General.ARCHITECTURE].contents())
    for field in reader.fields.values():
        # The writer adds the architecture and the header's own fields itself.
        if field.name == gguf.Keys.General.ARCHITECTURE or field.name.startswith("GGUF."):
            continue
        value = field.contents()
        if field.name == gguf.Keys.General.FILE_TYPE:
            value = int(gguf.LlamaFileType.ALL_F32)
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
