"""Search for a short order: the problem as flat lists, its timing, a beam of partial orders, a descent."""
