"""What drafters share: sessions, how they are built, trained and stored, and EAGLE's files."""
