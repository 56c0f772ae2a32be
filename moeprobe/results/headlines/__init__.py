"""What is read first of a run in a terminal or report: declared, collected from tables, in sentences."""
