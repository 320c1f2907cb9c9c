"""The headers of one attempt after Standard Webhooks: its time, and the signature of a topic that has a secret.

While a secret is being changed, both the old and the new one sign, so that a receiver with either accepts the call.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence

from standardwebhooks.webhooks import hmac_data

from duetime.callbacks.request import ID_HEADER, CallbackRequest
from duetime.callbacks.topic_registry import SECRET_PREFIX


def attempt_headers(secrets: Sequence[str], request: CallbackRequest, *, now_ms: int) -> Mapping[str, str]:
    """The timestamp is the attempt's own, so that a receiver does not refuse a retry as too old."""
    second = str(now_ms // 1000)
    if not secrets:
        return {"webhook-timestamp": second}
    # The library's own `sign` takes only text, and a body may be any bytes.
    signed = f"{request.headers[ID_HEADER]}.{second}.".encode() + request.body
    keys = [b64decode(secret.removeprefix(SECRET_PREFIX)) for secret in secrets]
    signatures = [f"v1,{b64encode(hmac_data(key, signed)).decode()}" for key in keys]
    return {"webhook-timestamp": second, "webhook-signature": " ".join(signatures)}
