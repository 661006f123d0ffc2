"""Images per second and latency by batch size."""
