"""What runs have saved: steps, records, what is complete, resumes or may go. Standard library only, Python 3.9."""
