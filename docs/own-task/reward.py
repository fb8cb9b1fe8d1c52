def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """1 for the right number, a tenth for any other number, else 0."""
    answer = solution_str.strip()
    if answer == ground_truth:
        return 1.0
    return 0.1 if answer.isdigit() else 0.0
