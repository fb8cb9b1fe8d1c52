"""What runs have saved: steps, records, what is complete, what resumes, what may go. Standard library only, Python 3.9."""
