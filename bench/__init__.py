"""The harness: studies, protocols, records. Knows no concrete decoder (DESIGN, house rule 1)."""
