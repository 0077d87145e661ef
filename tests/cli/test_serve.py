"""`dspine serve`: what is refused before anything is loaded."""

from __future__ import annotations

import importlib.util

import pytest
from tests.cli.conftest import assert_fault

from dspine.serve.http import server


@pytest.fixture(autouse=True)
def no_server(monkeypatch):
    def never(*_, **__):
        raise AssertionError("nothing should have been served")

    monkeypatch.setattr(server, "bind", never)


def test_keys_that_cannot_be_meant(run, tmp_path, monkeypatch):
    monkeypatch.delenv("DSPINE_API_KEY", raising=False)
    file = tmp_path / "key"
    assert_fault(run("serve", "--api-key-file", file), 1, "the key cannot be read from")
    file.write_text(" \n")
    assert_fault(run("serve", "--api-key-file", file), 1, "is empty")
    monkeypatch.setenv("DSPINE_API_KEY", "one")
    file.write_text("two")
    assert_fault(run("serve", "--api-key-file", file), 1, "both DSPINE_API_KEY and --api-key-file")


def test_the_key_is_no_option(run):
    assert run("serve", "--api-key", "secret").exit_code == 2


def test_what_is_not_installed_is_named(run, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    assert_fault(run("serve"), 1, "the server needs uvicorn", "pip install 'dspine[serve]'")


def test_options_that_exclude_each_other(run):
    assert run("serve", "--no-drafter", "--drafter", "nano").exit_code == 2
    assert run("serve", "--slots", "0").exit_code == 2
