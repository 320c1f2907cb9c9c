"""Signs callbacks as Standard Webhooks says: with three headers; the body is not changed.

A topic without a secret sends none of them. While a secret is being changed, both the old and the new one sign, so
that a receiver with either accepts the call.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from standardwebhooks import Webhook


def signed_headers(secrets: Sequence[str], job_id: str, body: str, *, now_ms: int) -> Mapping[str, str]:
    """The headers of one attempt, empty without a secret. The timestamp is the attempt's own, so that a receiver does
    not refuse a retry as too old.
    """
    if not secrets:
        return {}
    second = now_ms // 1000
    at = datetime.fromtimestamp(second, UTC)
    signatures = [Webhook(secret).sign(job_id, at, body) for secret in secrets]
    return {"webhook-id": job_id, "webhook-timestamp": str(second), "webhook-signature": " ".join(signatures)}
