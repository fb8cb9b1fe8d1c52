from cloudrl.spec import did_you_mean, nearest

CHOICES = ("gsm8k", "math", "addition")


def test_nearest_ignores_letter_case():
    assert nearest("GSM8K", CHOICES) == "gsm8k"
    assert nearest("Aditon", CHOICES) == "addition"


def test_nothing_is_near_a_word_like_no_other():
    assert nearest("zzz", CHOICES) is None
    assert nearest("", CHOICES) is None
    assert nearest("math", ()) is None


def test_did_you_mean_is_a_clause_or_nothing():
    assert did_you_mean("maths", CHOICES) == "; did you mean 'math'?"
    assert did_you_mean("zzz", CHOICES) == ""
