"""pd-bootstrap, the phone book: who is there, in which life, and where each rank is reached."""
