"""Signatures of callbacks by Standard Webhooks: three headers, and not a byte of the body changed.

A topic without a secret sends none of them. While a secret is being changed both sign, so a receiver accepts either.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from standardwebhooks import Webhook


def signed_headers(secrets: Sequence[str], job_id: str, body: str, *, now_ms: int) -> Mapping[str, str]:
    """Empty without a secret. The timestamp is of this call, so that a retry is not refused as too old."""
    if not secrets:
        return {}
    second = now_ms // 1000
    at = datetime.fromtimestamp(second, UTC)
    signatures = [Webhook(secret).sign(job_id, at, body) for secret in secrets]
    return {"webhook-id": job_id, "webhook-timestamp": str(second), "webhook-signature": " ".join(signatures)}
