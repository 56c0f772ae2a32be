"""What is shown of tables, as plain cells: the terminal and reports render the same."""
