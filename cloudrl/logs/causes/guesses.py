"""What a message only supposes or advises: its standing text says the same of every failure, and nothing of this one.

Torch ends CUDA errors with "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.", and Ray says of
a raylet that died "Possible reasons include: ... SIGSEGV or SIGBUS". `tests/logs/causes/standing_texts.yml` has more.
"""

import re

_ADVICE = re.compile(
    r"^[ \t]{0,40}(?:"
    r"(?:CUDA|HIP) kernel errors might be asynchronously reported"
    r"|For debugging consider passing|For more detailed error information|Compile with `TORCH_USE_|Search for `"
    r"|Device-side assert(?:ion)?s? |GPU device may be out of range"
    r"|Refer to the documentation|To see more information|To troubleshoot|Tip: "
    r"|Possible (?:reasons|causes|solutions)\b|\(?\d{1,2}[.)] (?:set|disable|switch to|decrease|increase|reduce|try) "
    r"|Open an issue on GitHub|Make sure |Please make sure |If (?:you|this|it|your)\b|You can "
    r").*",
    re.MULTILINE,
)
"""Lines of advice alone."""
_SUPPOSED = re.compile(
    r"(?<=[.;!?)] )(?:"
    r"Some common causes include|There are some potential root causes"
    r"|(?:Possible|Potential|Common) (?:root )?(?:reasons|causes|solutions)\b"
    r"|(?:This|It|That) (?:error )?(?:can|could|may|might|usually|often|probably|likely) "
    r"|(?:This|It|That) is (?:most |very )?(?:often|usually|likely|probably|possibl[ey]|expected if|typically) ?"
    r"|If (?:you|this|it|your|the process)\b|Otherwise,|Note that "
    r"|To (?:troubleshoot|see more|adjust|disable|avoid|fix|prevent|enable|resolve) "
    r"|(?:[Tt]ry|[Cc]onsider|[Mm]ake sure|[Rr]efer to|[Cc]heck(?! failed)) |Please (?!see the error)|Did the "
    r"|Details are lost "
    r"|You (?:can|may|should|need to|must) "
    r").*"
)
"""The rest of a line from the first supposition or advice on."""


def facts_of(text: str) -> str:
    """The same text, of one line or several, without what it only supposes or advises."""
    return _SUPPOSED.sub("", _ADVICE.sub("", text))
