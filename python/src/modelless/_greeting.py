"""What went wrong before anything was asked, by what the errors below httpx's say: TLS that did not come about, or is missing."""

from __future__ import annotations

import ssl
from typing import Optional

import httpx

#: OpenSSL's numbers for certificates that come from nobody who is believed.
UNKNOWN_ISSUERS = (18, 19, 20, 21)


def no_tls(error: BaseException) -> Optional[str]:
    """Why there is no TLS, and what to do; nothing if that was not it."""
    cause: Optional[BaseException] = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return None
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = f"its certificate is not believed ({cause.verify_message})"
        if cause.verify_code in UNKNOWN_ISSUERS:
            why += "; name the authorities that it may come from with ca=FILE or MODELLESS_CA"
        return why
    reason = cause.reason or str(cause)
    if reason in ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"):
        return "it does not speak TLS; perhaps its address begins with http://"
    if reason == "TLSV13_ALERT_CERTIFICATE_REQUIRED":
        return "it wants a certificate to be shown; give certificate=(FILE, KEY)"
    return reason


def no_http(server: str, error: httpx.TransportError) -> bool:
    """Whether what came back is something else than HTTP, such as TLS."""
    return server.startswith("http://") and isinstance(error, httpx.RemoteProtocolError) and "illegal" in str(error)
