"""The float32 copy of a GGUF file: other tensors, same everything else."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from cpu_gguf import float32_gguf


@pytest.fixture
def source(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "source.gguf", "llama")
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q8_0))
    writer.add_block_count(3)
    writer.add_rope_freq_base(1e5)
    writer.add_token_list(["a", "Ġb", "é"])
    writer.add_token_types([1, 3, 1])
    writer.add_add_bos_token(False)
    values = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("quantised.weight", quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("norm.weight", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "source.gguf"


def test_tensors_are_dequantised_and_metadata_is_kept(source, tmp_path):
    copy = gguf.GGUFReader(float32_gguf(source, tmp_path / "new" / "copy.gguf"))
    reader = gguf.GGUFReader(source)
    for old, new in zip(reader.tensors, copy.tensors, strict=True):
        assert (new.name, new.tensor_type) == (old.name, gguf.GGMLQuantizationType.F32)
        assert list(new.shape) == list(old.shape)
        assert np.array_equal(new.data, dequantize(old.data, old.tensor_type))
    assert copy.fields.keys() == reader.fields.keys()
    for name, field in reader.fields.items():
        expected = int(gguf.LlamaFileType.ALL_F32) if name == gguf.Keys.General.FILE_TYPE else field.contents()
        assert copy.fields[name].contents() == expected
        assert copy.fields[name].types == field.types


def test_a_copy_that_is_there_is_not_made_again(source, tmp_path):
    place = tmp_path / "copy.gguf"
    place.write_bytes(b"as it was")
    assert float32_gguf(source, place).read_bytes() == b"as it was"


def test_nothing_is_left_of_a_copy_that_failed(source, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr("cpu_gguf.os.replace", fail)
    with pytest.raises(OSError, match="no space left"):
        float32_gguf(source, tmp_path / "new" / "copy.gguf")
    assert list((tmp_path / "new").iterdir()) == []
