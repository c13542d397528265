"""The certificate that HTTPS is served with."""

import ssl
from pathlib import Path

from server.settings import Settings, SettingsError


def check(settings: Settings) -> None:
    """Raises `SettingsError` where certificate and key are set and cannot be used."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return
    for name, path in (("tls_certificate", settings.tls_certificate), ("tls_key", settings.tls_key)):
        _check_readable(name, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.tls_certificate,
            settings.tls_key,
            password=_refuse_to_guess,  # without this, the terminal would be asked
        )
    except _EncryptedError:
        raise SettingsError(f"tls_key: {settings.tls_key} is encrypted; write it without a pass phrase") from None
    except ssl.SSLError as error:
        why = "it is not the certificate's" if error.reason == "KEY_VALUES_MISMATCH" else "they must be PEM"
        files = f"{settings.tls_certificate} and {settings.tls_key}"
        raise SettingsError(f"tls_certificate and tls_key: {files} cannot be used: {why}") from None


class _EncryptedError(Exception):
    pass


def _refuse_to_guess() -> str:
    raise _EncryptedError


def _check_readable(name: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{name} cannot be read: {error}") from None
