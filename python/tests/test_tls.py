"""Whom an https server is believed. Real greetings stand in `tests/tests/it/front_tls.rs`, where certificates can be made."""

from __future__ import annotations

from pathlib import Path

import pytest

import modelless


def test_files_that_are_no_certificates_are_told_before_anything_is_sent(tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate")
    for make in (modelless.Client, modelless.AsyncClient):
        for ca in (nonsense, tmp_path / "nowhere.pem"):
            with pytest.raises(modelless.InputError, match="no file of certificates"):
                make("https://127.0.0.1:1", ca=ca)
        with pytest.raises(modelless.InputError, match="no certificate and its key"):
            make("https://127.0.0.1:1", certificate=(nonsense, nonsense))
        with pytest.raises(modelless.InputError, match="either verify, or ca"):
            make("https://127.0.0.1:1", ca=nonsense, verify=False)


def test_http_needs_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELLESS_CA", "/nowhere.pem")
    modelless.Client("http://127.0.0.1:1").close()
    with pytest.raises(modelless.InputError, match="/nowhere.pem"):
        modelless.Client("https://127.0.0.1:1")
