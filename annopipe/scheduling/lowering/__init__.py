"""Lowering: named passes from programs to programs that add messages and parameter actions to computation."""
