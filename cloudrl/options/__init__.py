"""What users ask for by options and keywords: each is declared once, and help and reference are made of that."""
