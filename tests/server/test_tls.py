"""Certificates that cannot be served with are told of before anything is loaded."""

from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from server import tls
from server.settings import Settings, SettingsError


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    own = trustme.CA().issue_cert("localhost")
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    own.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    return {"tls_certificate": tmp_path / "certificate.pem", "tls_key": tmp_path / "key.pem"}


def refusal(files: dict[str, Path]) -> str:
    with pytest.raises(SettingsError) as refused:
        tls.check(Settings.load(files))
    return str(refused.value)


def test_a_pair_that_fits_is_taken(files: dict[str, Path]) -> None:
    tls.check(Settings.load(files))
    assert Settings.load({**files, "port": 1, "host": "::"}).address == "https://[::]:1"


def test_none_is_http() -> None:
    tls.check(Settings.load())
    assert Settings.load().address == "http://127.0.0.1:8000"


@pytest.mark.parametrize("name", ["tls_certificate", "tls_key"])
def test_one_without_the_other(files: dict[str, Path], name: str) -> None:
    assert "tls_certificate and tls_key are of use together only" in refusal({name: files[name]})


@pytest.mark.parametrize("name", ["tls_certificate", "tls_key"])
def test_files_that_are_not_there_or_something_else(files: dict[str, Path], name: str, tmp_path: Path) -> None:
    assert refusal({**files, name: tmp_path / "none.pem"}).startswith(f"{name} cannot be read: ")
    files[name].write_text("hello")
    assert "they must be PEM" in refusal(files)


def test_the_key_of_another_certificate(files: dict[str, Path]) -> None:
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(files["tls_key"])
    assert "it is not the certificate's" in refusal(files)


def test_an_encrypted_key(files: dict[str, Path]) -> None:
    key = load_pem_private_key(files["tls_key"].read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    files["tls_key"].write_bytes(locked)
    assert "is encrypted" in refusal(files)
