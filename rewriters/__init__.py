"""Reserved for codemods that add, convert and remove tags in model source; no rule exists yet."""
