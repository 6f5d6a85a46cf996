"""Commands of the command line that have a file of their own; `planner.cli` holds the others and the entry point."""
