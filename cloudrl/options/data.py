"""The options for fields of data sets."""

from typing import Annotated, TypedDict

from cloudrl.options.declaration import Option


class DataSetOptions(TypedDict, total=False):
    """Fields of `cloudrl.DataSet`."""

    source: Annotated[str, Option("Where the raw rows are: owner/name, or a path.", "PLACE")]
    prompt_field: Annotated[str, Option("Prompt column; dots select nested fields.", "FIELD")]
    answer_field: Annotated[str, Option("Answer column.", "FIELD")]
    system: Annotated[str, Option("System message to put before each prompt.", "TEXT")]
    config: Annotated[str, Option("Configuration (subset) on the Hub.", "NAME")]
    split: Annotated[str, Option("Training split.", "NAME")]
    test_split: Annotated[str, Option("Test split.", "NAME")]
    test_rows: Annotated[int, Option("Hold out N rows of the training split for testing.", "N")]
    data_source: Annotated[str, Option("Name by which verl chooses the reward function.", "NAME")]
    skip_bad: Annotated[bool, Option("Skip rows with an empty prompt or answer.", sets=True)]
