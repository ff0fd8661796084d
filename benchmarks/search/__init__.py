"""Policy ``search`` against proven optima: the problems, the comparison, the command."""
