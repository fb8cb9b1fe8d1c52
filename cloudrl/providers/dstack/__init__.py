"""Provider `dstack`: fleets and volumes, through the dstack server that the user has configured."""
