"""What questions to recordings share: from files to sums per input, tables and a folder."""
