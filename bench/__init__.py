"""The harness: studies, protocols, records. Knows no concrete decoder."""
