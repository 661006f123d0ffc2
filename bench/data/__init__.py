"""The ground floor: what every room speaks of. Imports no other room."""
